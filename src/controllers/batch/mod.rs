//! Controllers of work that ends: Jobs, CronJobs, and the removal of finished Jobs.

pub mod cron_job;
pub mod job;
mod schedule;
pub mod ttl;
mod view;

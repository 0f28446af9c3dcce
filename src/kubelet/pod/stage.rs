//! The stages of a pod's life on its node, and what leads from one to the next.
//! Pure: `next` looks at facts, the worker does what a stage is for.
//!
//! ```text
//! Admitting ─▶ Running ─▶ Stopping ─▶ Cleaning ─┬▶ Ended ─┐
//!     └───────────────────────▲                 ├─────────┴▶ Deleting ─▶ Removing ─▶ Gone
//!                                               └───────────────────────▲
//! ```

/// Where a pod is. Each stage says what is done in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is decided whether the node takes the pod.
    Admitting,
    /// Sandbox and containers are kept as the spec wants them.
    Running,
    /// Its containers are being killed.
    Stopping,
    /// Sandbox, volumes and cgroup are given back.
    Cleaning,
    /// It has ended, and its object and logs are still there.
    Ended,
    /// Its last status is sent, then its object is deleted.
    Deleting,
    /// Containers, sandboxes, logs and folders are removed.
    Removing,
    /// Nothing is left.
    Gone,
}

/// What decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// The API has the pod.
    pub exists: bool,
    /// Its deletion was asked for.
    pub deleting: bool,
    /// The node took it.
    pub admitted: bool,
    /// The kubelet decided its end.
    pub doomed: bool,
    /// Its containers ended for good.
    pub finished: bool,
    /// Nothing of it runs or is being started.
    pub stopped: bool,
    /// Sandbox, volumes and cgroup are given back.
    pub cleaned: bool,
    /// Its object was deleted by the kubelet.
    pub deleted: bool,
    /// Everything of it was removed.
    pub removed: bool,
}

/// The stage after `stage`, or `stage` itself when it is to stay.
pub fn next(stage: Stage, facts: &Facts) -> Stage {
    let ends = !facts.exists || facts.deleting || facts.doomed;
    match stage {
        Stage::Admitting if ends => Stage::Stopping,
        Stage::Admitting if facts.admitted => Stage::Running,
        Stage::Running if ends || facts.finished => Stage::Stopping,
        Stage::Stopping if facts.stopped => Stage::Cleaning,
        Stage::Cleaning if facts.cleaned => match facts {
            Facts { exists: false, .. } => Stage::Removing,
            Facts { deleting: true, .. } => Stage::Deleting,
            _ => Stage::Ended,
        },
        Stage::Ended if !facts.exists => Stage::Removing,
        Stage::Ended if facts.deleting => Stage::Deleting,
        Stage::Deleting if facts.deleted || !facts.exists => Stage::Removing,
        Stage::Removing if facts.removed => Stage::Gone,
        stay => stay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXISTS: Facts = Facts {
        exists: true,
        deleting: false,
        admitted: false,
        doomed: false,
        finished: false,
        stopped: false,
        cleaned: false,
        deleted: false,
        removed: false,
    };

    /// Follows `next` until it stays, with facts that come true one after the other.
    fn walk(mut facts: Facts, turns: &[fn(&mut Facts)]) -> Vec<Stage> {
        let mut stage = Stage::Admitting;
        let mut seen = vec![stage];
        for turn in turns {
            turn(&mut facts);
            while next(stage, &facts) != stage {
                stage = next(stage, &facts);
                seen.push(stage);
            }
        }
        seen
    }

    #[test]
    fn a_deleted_pod_is_stopped_cleaned_deleted_and_removed() {
        use Stage::*;
        let seen = walk(
            EXISTS,
            &[
                |f| f.admitted = true,
                |f| f.deleting = true,
                |f| f.stopped = true,
                |f| f.cleaned = true,
                |f| f.deleted = true,
                |f| f.removed = true,
            ],
        );
        assert_eq!(
            seen,
            [
                Admitting, Running, Stopping, Cleaning, Deleting, Removing, Gone
            ]
        );
    }

    #[test]
    fn a_finished_pod_waits_for_its_deletion() {
        use Stage::*;
        let seen = walk(
            EXISTS,
            &[
                |f| f.admitted = true,
                |f| f.finished = true,
                |f| f.stopped = true,
                |f| f.cleaned = true,
                |f| f.deleting = true,
            ],
        );
        assert_eq!(
            seen,
            [Admitting, Running, Stopping, Cleaning, Ended, Deleting]
        );
    }

    #[test]
    fn a_pod_the_api_does_not_know_is_stopped_and_removed_without_a_word() {
        use Stage::*;
        let seen = walk(
            Facts {
                exists: false,
                ..EXISTS
            },
            &[
                |f| f.stopped = true,
                |f| f.cleaned = true,
                |f| f.removed = true,
            ],
        );
        assert_eq!(seen, [Admitting, Stopping, Cleaning, Removing, Gone]);
    }

    #[test]
    fn a_rejected_pod_ends_without_running() {
        use Stage::*;
        let seen = walk(
            EXISTS,
            &[
                |f| f.doomed = true,
                |f| f.stopped = true,
                |f| f.cleaned = true,
            ],
        );
        assert_eq!(seen, [Admitting, Stopping, Cleaning, Ended]);
    }

    #[test]
    fn no_stage_is_left_backwards() {
        let all = [true, false];
        for bits in 0..512u32 {
            let bit = |n: u32| all[usize::from(bits & (1 << n) == 0)];
            let facts = Facts {
                exists: bit(0),
                deleting: bit(1),
                admitted: bit(2),
                doomed: bit(3),
                finished: bit(4),
                stopped: bit(5),
                cleaned: bit(6),
                deleted: bit(7),
                removed: bit(8),
            };
            let order = [
                Stage::Admitting,
                Stage::Running,
                Stage::Stopping,
                Stage::Cleaning,
                Stage::Ended,
                Stage::Deleting,
                Stage::Removing,
                Stage::Gone,
            ];
            for (place, stage) in order.iter().enumerate() {
                let after = next(*stage, &facts);
                let reached = order
                    .iter()
                    .position(|stage| *stage == after)
                    .expect("a known stage");
                assert!(reached >= place, "{stage:?} -> {after:?} with {facts:?}");
            }
        }
    }
}

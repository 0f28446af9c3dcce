//! The sandbox image, made here so that it needs no pull: one static program of a few hundred bytes that sleeps and
//! reaps, in an OCI archive that containerd imports.

mod archive;
mod pause;

pub use archive::Image;

/// The name that containerd knows the sandbox image by.
pub const PAUSE: &str = "skiff.local/pause:1";

/// The sandbox image for this machine.
pub fn pause() -> Image {
    Image {
        reference: PAUSE.into(),
        architecture: pause::ARCHITECTURE.into(),
        entrypoint: vec!["/pause".into()],
        user: "65535:65535".into(),
        files: vec![("pause".into(), pause::program())],
    }
}

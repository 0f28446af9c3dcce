//! Writes an image of a few files as an OCI archive (image-spec 1.0: `oci-layout`, `index.json`, `blobs/sha256/…`).

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A tar's unit.
const BLOCK: usize = 512;

/// An image of one layer.
pub struct Image {
    /// Such as `registry/name:tag`.
    pub reference: String,
    /// As Go names it.
    pub architecture: String,
    pub entrypoint: Vec<String>,
    pub user: String,
    /// Path without the leading slash, and content. All are executable.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Image {
    /// The archive. The same image gives the same bytes.
    pub fn archive(&self) -> Vec<u8> {
        let mut layer = Tar::default();
        for (path, content) in &self.files {
            layer.file(path, content, 0o755);
        }
        let layer = layer.finish();
        let config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "User": self.user, "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        })
        .to_string()
        .into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        })
        .to_string()
        .into_bytes();
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": self.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag),
        });
        entry["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        });
        let mut archive = Tar::default();
        archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644);
        archive.file("index.json", index.to_string().as_bytes(), 0o644);
        for blob in [&layer, &config, &manifest] {
            archive.file(&format!("blobs/sha256/{}", hex(blob)), blob, 0o644);
        }
        archive.finish()
    }
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(blob), "size": blob.len()})
}

fn digest(blob: &[u8]) -> String {
    format!("sha256:{}", hex(blob))
}

fn hex(blob: &[u8]) -> String {
    Sha256::digest(blob)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A tar (POSIX ustar) in memory. Paths are shorter than 100 bytes, files smaller than 8 GiB.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn file(&mut self, path: &str, content: &[u8], mode: u32) {
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, path.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", content.len()).as_bytes());
        put(136, b"00000000000");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let checksum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{checksum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        let padded = self.0.len().next_multiple_of(BLOCK);
        self.0.resize(padded, 0);
    }

    /// Two empty blocks end it.
    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_the_archive_and_every_blob_has_its_digest() {
        let image = super::super::pause();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image.tar");
        std::fs::write(&path, image.archive()).expect("written");
        let status = std::process::Command::new("tar")
            .arg("-xf")
            .arg(&path)
            .arg("-C")
            .arg(folder.path())
            .status();
        assert!(status.expect("tar runs").success());
        let index: Value = serde_json::from_slice(
            &std::fs::read(folder.path().join("index.json")).expect("there"),
        )
        .expect("JSON");
        let manifest = index["manifests"][0]["digest"]
            .as_str()
            .expect("a digest")
            .trim_start_matches("sha256:")
            .to_string();
        let blob =
            std::fs::read(folder.path().join("blobs/sha256").join(&manifest)).expect("there");
        assert_eq!(hex(&blob), manifest);
        assert_eq!(image.archive(), super::super::pause().archive());
    }
}

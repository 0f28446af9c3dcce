//! Removing images that no container uses when the disk fills up. `plan` is
//! pure; the node's agent applies it.

use std::collections::BTreeSet;

use crate::cri::v1::Image;
use crate::pod::back_off::SECOND;
use crate::pod::view::Nanos;

/// An image that was used so recently stays (upstream's `imageMinimumGCAge`).
pub const MINIMUM_AGE: Nanos = 120 * SECOND;

/// Ids of images to remove so that about `bytes` come free: those that nothing
/// has used for a while, the longest unused first.
pub fn plan(
    images: &[Image],
    used: &BTreeSet<String>,
    unused_since: impl Fn(&str) -> Nanos,
    now: Nanos,
    bytes: u64,
) -> Vec<String> {
    let mut candidates: Vec<_> = images
        .iter()
        .filter(|image| !image.pinned && !is_used(image, used))
        .map(|image| (unused_since(&image.id), image))
        .filter(|(since, _)| now - since >= MINIMUM_AGE)
        .collect();
    candidates.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.id.cmp(&y.id)));
    let mut freed = 0u64;
    candidates
        .into_iter()
        .take_while(|(_, image)| {
            let wanted = freed < bytes;
            freed = freed.saturating_add(image.size);
            wanted
        })
        .map(|(_, image)| image.id.clone())
        .collect()
}

/// Whether a container uses it: they name their image by id, digest or tag.
pub fn is_used(image: &Image, used: &BTreeSet<String>) -> bool {
    let names = image
        .repo_tags
        .iter()
        .chain(&image.repo_digests)
        .chain([&image.id]);
    names.into_iter().any(|name| used.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_image(id: &str, size: u64) -> Image {
        Image {
            id: id.to_owned(),
            size,
            repo_tags: vec![format!("{id}:latest")],
            ..Default::default()
        }
    }

    #[test]
    fn the_longest_unused_go_first_and_only_as_many_as_needed() {
        let mut pinned = mk_image("pause", 1);
        pinned.pinned = true;
        let images = [
            mk_image("a", 10),
            mk_image("b", 10),
            mk_image("c", 10),
            mk_image("d", 10),
            pinned,
        ];
        let used = BTreeSet::from(["c:latest".to_owned()]);
        let since = |id: &str| match id {
            "b" => 1,
            "d" => 2,
            _ => 3,
        };
        let now = MINIMUM_AGE + 3;
        assert_eq!(plan(&images, &used, since, now, 15), ["b", "d"]);
        assert_eq!(plan(&images, &used, since, now, 0), Vec::<String>::new());
        assert_eq!(plan(&images, &used, since, now, 1000), ["b", "d", "a"]);
        assert_eq!(
            plan(&images, &used, since, now - 2, 1000),
            ["b"],
            "the others are too young"
        );
    }
}

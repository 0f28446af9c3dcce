//! Removing images that no container uses when the disk fills up. `plan` is
//! pure; the node's agent applies it.

use std::collections::BTreeSet;

use crate::cri::v1::Image;

/// Ids of images to remove so that about `bytes` come free: those that nothing
/// uses, the longest unused first. `unused_since` is nanoseconds since 1970.
pub fn plan(
    images: &[Image],
    used: &BTreeSet<String>,
    unused_since: impl Fn(&str) -> i64,
    bytes: u64,
) -> Vec<String> {
    let mut candidates: Vec<_> = images
        .iter()
        .filter(|image| !image.pinned && !is_used(image, used))
        .map(|image| (unused_since(&image.id), image))
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

/// Containers name their image by id, digest or tag.
fn is_used(image: &Image, used: &BTreeSet<String>) -> bool {
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
        assert_eq!(plan(&images, &used, since, 15), ["b", "d"]);
        assert_eq!(plan(&images, &used, since, 0), Vec::<String>::new());
        assert_eq!(plan(&images, &used, since, 1000), ["b", "d", "a"]);
    }
}

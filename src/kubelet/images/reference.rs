//! Image names: the tag that is implied, the registry a name belongs to, and
//! what is no name at all. Pure.

/// A name that cannot be an image's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name \"{name}\": {reason}")]
pub struct InvalidName {
    name: String,
    reason: &'static str,
}

const DEFAULT_REGISTRY: &str = "docker.io";
/// The longest repository name (distribution's `NameTotalLengthMax`).
const MAX_REPOSITORY: usize = 255;

/// A name taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// `docker.io`, `127.0.0.1:5000`.
    pub registry: String,
    /// `library/nginx`.
    pub repository: String,
    /// The tag, if there is one.
    pub tag: Option<String>,
    /// The digest, if there is one.
    pub digest: Option<String>,
}

/// Takes a name apart as Docker and containerd do.
pub fn parse(name: &str) -> Result<Reference, InvalidName> {
    let invalid = |reason| InvalidName {
        name: name.to_owned(),
        reason,
    };
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(invalid("invalid reference format"));
    }
    let slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match rest[slash..].split_once(':') {
        Some((last, tag)) => (&rest[..slash + last.len()], Some(tag)),
        None => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(invalid("invalid reference format"));
    }
    let (registry, repository) = match path.split_once('/') {
        Some((host, rest)) if is_host(host) => (host, rest),
        _ => (DEFAULT_REGISTRY, path),
    };
    if repository.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(invalid(
            "invalid reference format: repository name must be lowercase",
        ));
    }
    if repository.len() > MAX_REPOSITORY || !repository.split('/').all(is_component) {
        return Err(invalid("invalid reference format"));
    }
    let official = registry == DEFAULT_REGISTRY && !repository.contains('/');
    Ok(Reference {
        registry: registry.to_owned(),
        repository: if official {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        },
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    })
}

/// The name with `:latest` if it has neither tag nor digest. The rest stays as
/// it was written: the runtime completes it.
pub fn with_default_tag(name: &str) -> Result<String, InvalidName> {
    let reference = parse(name)?;
    match (reference.tag, reference.digest) {
        (None, None) => Ok(format!("{name}:latest")),
        _ => Ok(name.to_owned()),
    }
}

/// The pull policy an image has when its container names none.
pub fn default_policy(name: &str) -> &'static str {
    match parse(name) {
        Ok(reference) if reference.digest.is_none() => match reference.tag.as_deref() {
            None | Some("latest") => "Always",
            Some(_) => "IfNotPresent",
        },
        _ => "IfNotPresent",
    }
}

fn is_host(word: &str) -> bool {
    word.contains(['.', ':']) || word == "localhost" || word.chars().any(|c| c.is_ascii_uppercase())
}

/// Lower case words joined by `.`, `_`, `__` or dashes.
fn is_component(word: &str) -> bool {
    let alphanumeric =
        |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    alphanumeric(word.chars().next())
        && alphanumeric(word.chars().last())
        && word.chars().all(allowed)
        && !word.contains("..")
        && !word.contains("___")
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= 128
        && tag.chars().next().is_some_and(word)
        && tag.chars().all(|c| word(c) || c == '.' || c == '-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_as_docker_does() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let with_digest = format!("nginx@{digest}");
        let cases = [
            ("nginx", "docker.io", "library/nginx", None),
            ("nginx:1.27", "docker.io", "library/nginx", Some("1.27")),
            ("a/b", "docker.io", "a/b", None),
            ("127.0.0.1:5000/a/b:t", "127.0.0.1:5000", "a/b", Some("t")),
            ("localhost/a", "localhost", "a", None),
            (
                "registry.k8s.io/pause:3.10",
                "registry.k8s.io",
                "pause",
                Some("3.10"),
            ),
            (&with_digest, "docker.io", "library/nginx", None),
        ];
        for (name, registry, repository, tag) in cases {
            let reference = parse(name).expect(name);
            assert_eq!(
                (reference.registry.as_str(), reference.repository.as_str()),
                (registry, repository)
            );
            assert_eq!(reference.tag.as_deref(), tag);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in [
            "", "UPPER", "a b", "a:", "a/", "a..b", "a@b", "-a", "a:b:c", "$(X)", "ä",
        ] {
            assert!(parse(name).is_err(), "{name}");
        }
        assert_eq!(
            parse("docker.io/Nginx")
                .expect_err("upper case")
                .to_string(),
            "couldn't parse image name \"docker.io/Nginx\": invalid reference format: repository name must be lowercase"
        );
    }

    #[test]
    fn latest_is_implied_and_decides_the_pull_policy() {
        assert_eq!(with_default_tag("nginx").as_deref(), Ok("nginx:latest"));
        assert_eq!(with_default_tag("nginx:1").as_deref(), Ok("nginx:1"));
        assert_eq!(default_policy("nginx"), "Always");
        assert_eq!(default_policy("nginx:1"), "IfNotPresent");
    }
}

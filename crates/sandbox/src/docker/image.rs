//! Which contents a container starts with.

use bollard::models::ImageInspect;
use remuda_domain::{
    error::{Code, Error, Result},
    execution::check_image,
};

use super::engine::Engine;
use crate::path::shown;

/// Where programs are, in an image that does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image that the engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    /// As it was asked for.
    pub(super) name: String,
    /// Its exact contents, by which containers are made: a name may be moved to others meanwhile.
    pub(super) id: String,
    /// What the registry calls these contents; the id if it came from none.
    pub(super) digest: String,
    /// Its search path for programs.
    pub(super) path: String,
}

/// Finds an image and makes sure that it can be used. Never fetches one.
pub(super) async fn find(engine: &Engine, name: Option<&str>) -> Result<Image> {
    let name = name.ok_or_else(|| Error::invalid("image", "expected an image for the docker backend"))?;
    check_image("image", name)?;
    let client = engine.client().await?;
    let found = engine.ask(|docker| async move { docker.inspect_image(name).await }).await;
    match found {
        Ok(found) => usable(name, found, &client.architecture),
        Err(failure) if failure.is_missing() => {
            let advice = "fetch it with docker pull, or make it with docker import or docker build";
            let message = format!("the engine does not have the image {}: {advice}", shown(name));
            Err(Error::new(Code::ImageNotFound, message).at("image"))
        }
        Err(failure) => Err(failure.to("look at the image")),
    }
}

fn usable(name: &str, found: ImageInspect, architecture: &str) -> Result<Image> {
    let unusable = |why: String| Err(Error::new(Code::ImageUnusable, why).at("image"));
    let of = found.architecture.unwrap_or_default();
    if !of.is_empty() && !architecture.is_empty() && of != architecture {
        return unusable(format!("the image is for {}, this machine is {}", shown(&of), shown(architecture)));
    }
    let os = found.os.unwrap_or_default();
    if !os.is_empty() && os != "linux" {
        return unusable(format!("the image is for {}, expected linux", shown(&os)));
    }
    let config = found.config.unwrap_or_default();
    // Each would be a directory that the command can fill without a limit.
    if let Some(volume) = config.volumes.unwrap_or_default().first() {
        return unusable(format!("the image declares a volume at {}, expected none", shown(volume)));
    }
    let Some(id) = found.id else { return unusable("the engine names no contents for the image".to_owned()) };
    let digest = found.repo_digests.unwrap_or_default().into_iter().next();
    let env = config.env.unwrap_or_default();
    let path = env.iter().find_map(|variable| variable.strip_prefix("PATH="));
    Ok(Image {
        name: name.to_owned(),
        digest: digest.unwrap_or_else(|| id.clone()),
        id,
        path: path.filter(|path| !path.is_empty()).unwrap_or(DEFAULT_PATH).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use bollard::models::ImageConfig;

    use super::*;

    fn inspected() -> ImageInspect {
        ImageInspect {
            id: Some("sha256:abc".into()),
            architecture: Some("amd64".into()),
            os: Some("linux".into()),
            ..Default::default()
        }
    }

    fn config(env: &[&str], volumes: &[&str]) -> Option<ImageConfig> {
        let owned = |list: &[&str]| Some(list.iter().map(|&text| text.to_owned()).collect());
        Some(ImageConfig { env: owned(env), volumes: owned(volumes), ..Default::default() })
    }

    #[test]
    fn digest_and_path_have_fallbacks() {
        let image = usable("team/tools:1", inspected(), "amd64").unwrap();
        assert_eq!((image.digest.as_str(), image.path.as_str()), ("sha256:abc", DEFAULT_PATH));
        let found = ImageInspect {
            repo_digests: Some(vec!["team/tools@sha256:def".into()]),
            config: config(&["LD_PRELOAD=/x.so", "PATH=/opt/bin:/bin"], &[]),
            ..inspected()
        };
        let image = usable("team/tools:1", found, "amd64").unwrap();
        assert_eq!((image.digest.as_str(), image.path.as_str()), ("team/tools@sha256:def", "/opt/bin:/bin"));
    }

    #[test]
    fn other_machines_and_volumes_are_refused() {
        let other = ImageInspect { os: Some("windows".into()), ..inspected() };
        let volume = ImageInspect { config: config(&[], &["/data"]), ..inspected() };
        for (found, architecture) in [(inspected(), "arm64"), (other, "amd64"), (volume, "amd64")] {
            let error = usable("x", found, architecture).unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::ImageUnusable, Some("image")));
        }
    }
}

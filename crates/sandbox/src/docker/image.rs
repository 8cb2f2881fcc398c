//! Lookup and checks of images.

use bollard::models::ImageInspect;
use remuda_domain::{
    error::{Code, Error, Result},
    execution::check_image,
};

use super::engine::Engine;
use crate::{path::display_safe, remote::Image};

/// Search path for images without `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Finds an image and checks that it is usable. Never pulls one.
pub(super) async fn find(engine: &Engine, name: &str) -> Result<Image> {
    check_image("image", name)?;
    let client = engine.client().await?;
    let found = engine.call(|docker| async move { docker.inspect_image(name).await }).await;
    match found {
        Ok(found) => usable(name, found, &client.architecture),
        Err(failure) if failure.is_missing() => {
            let advice = "fetch it with docker pull, or make it with docker import or docker build";
            let message = format!("the engine does not have the image {}: {advice}", display_safe(name));
            Err(Error::new(Code::ImageNotFound, message).at("image"))
        }
        Err(failure) => Err(failure.into_error("inspect the image")),
    }
}

fn usable(name: &str, found: ImageInspect, architecture: &str) -> Result<Image> {
    let unusable = |why: String| Err(Error::new(Code::ImageUnusable, why).at("image"));
    let of = found.architecture.unwrap_or_default();
    if !of.is_empty() && !architecture.is_empty() && of != architecture {
        return unusable(format!(
            "the image is for {}, this machine is {}",
            display_safe(&of),
            display_safe(architecture)
        ));
    }
    let os = found.os.unwrap_or_default();
    if !os.is_empty() && os != "linux" {
        return unusable(format!("the image is for {}, expected linux", display_safe(&os)));
    }
    let config = found.config.unwrap_or_default();
    // A volume is a directory that commands could fill without a limit.
    if let Some(volume) = config.volumes.unwrap_or_default().first() {
        return unusable(format!("the image declares a volume at {}, expected none", display_safe(volume)));
    }
    let Some(id) = found.id else { return unusable("the engine reports no id for the image".to_owned()) };
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
    fn foreign_platforms_and_declared_volumes_are_rejected() {
        let other = ImageInspect { os: Some("windows".into()), ..inspected() };
        let volume = ImageInspect { config: config(&[], &["/data"]), ..inspected() };
        for (found, architecture) in [(inspected(), "arm64"), (other, "amd64"), (volume, "amd64")] {
            let error = usable("x", found, architecture).unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::ImageUnusable, Some("image")));
        }
    }
}

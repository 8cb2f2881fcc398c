//! The data directory and the store of the embedded mode.

use std::path::Path;

use crate::{
    error::{Error, Origin, Problem},
    secret_url::SecretUrl,
    tree::Config,
};

impl Config {
    /// The data directory. Fails if it is not set and no home directory is known.
    pub fn data_directory(&self) -> Result<&Path, Error> {
        if !self.data_dir.as_os_str().is_empty() {
            return Ok(&self.data_dir);
        }
        Err(Problem {
            key: "data_dir".to_owned(),
            origin: Origin::Default,
            message: "expected a directory, as neither XDG_DATA_HOME nor HOME is set".to_owned(),
        }
        .into())
    }

    /// The `store.url` of the embedded mode: the configured one, or a file in the data directory.
    pub fn embedded_store_url(&self) -> Result<SecretUrl, Error> {
        if !self.store.url.is_empty() {
            return Ok(self.store.url.clone());
        }
        let file = self.data_directory()?.join("remuda.db");
        // These two characters are special in URLs.
        let path = file.display().to_string().replace('%', "%25").replace('?', "%3F");
        Ok(SecretUrl::new(format!("sqlite:{path}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_store_is_in_the_data_directory_unless_configured() {
        let mut config = Config::default();
        let error = config.embedded_store_url().unwrap_err().to_string();
        assert!(error.contains("data_dir") && error.contains("HOME"), "{error}");
        config.data_dir = "/d/100%?".into();
        assert_eq!(config.embedded_store_url().unwrap().expose(), "sqlite:/d/100%25%3F/remuda.db");
        config.store.url = SecretUrl::new("sqlite:/x.db");
        assert_eq!(config.embedded_store_url().unwrap().expose(), "sqlite:/x.db");
    }
}

//! Checks the certificate of the ports.

use chrono::{DateTime, Days, Utc};
use remuda_config::Tls;

use super::Check;
use crate::serve::server_tls;

const NAME: &str = "TLS";
/// Certificates that are renewed automatically usually are by then.
const SOON: Days = Days::new(14);

/// `None` without TLS.
pub(super) fn certificate(settings: &Tls) -> Option<Check> {
    let shown = settings.certificate.display();
    match server_tls(settings) {
        Ok(tls) => tls.map(|tls| check(&shown.to_string(), tls.expires_at(), Utc::now())),
        Err(error) => Some(Check::problem(NAME, error.to_string(), "correct tls.certificate and tls.key")),
    }
}

fn check(file: &str, expires_at: DateTime<Utc>, now: DateTime<Utc>) -> Check {
    let found = format!("{file} expires at {}", expires_at.format("%Y-%m-%d %H:%M UTC"));
    const FIX: &str = "replace the files; processes reload them";
    if expires_at <= now {
        return Check::problem(NAME, found, FIX);
    }
    match expires_at < now + SOON {
        true => Check::warning(NAME, found, FIX),
        false => Check::ok(NAME, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn certificate_is_checked_for_its_end() {
        let now = Utc::now();
        for (days, level) in [(0, Level::Problem), (13, Level::Warning), (15, Level::Ok)] {
            assert_eq!(check("a.pem", now + Days::new(days), now).level, level, "{days}");
        }
    }

    #[test]
    fn missing_certificate_is_a_problem() {
        assert!(certificate(&Tls::default()).is_none());
        let settings = Tls { certificate: "/missing".into(), key: "/missing".into(), ..Tls::default() };
        let check = certificate(&settings).unwrap();
        assert_eq!(check.level, Level::Problem);
        assert!(check.found.contains("tls.certificate"), "{}", check.found);
    }
}

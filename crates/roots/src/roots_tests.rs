use std::os::unix::fs::symlink;

use super::*;

fn roots(own: &str, allowed: &[&str]) -> WorkspaceRoots {
    WorkspaceRoots::new(&options(own, allowed))
}

fn options(own: &str, allowed: &[&str]) -> RootOptions {
    RootOptions {
        own: own.into(),
        allowed: allowed.iter().map(Into::into).collect(),
        ..RootOptions::default()
    }
}

/// Why acme may not have this directory; empty if it may.
fn refusal(roots: &WorkspaceRoots, path: &str) -> &'static str {
    match roots.check("acme", Path::new(path)).map_err(|refusal| refusal.reason) {
        Ok(()) => "",
        Err(Reason::System(_)) => "system",
        Err(Reason::DataDirectory) => "data",
        Err(Reason::OtherTenant) => "other",
        Err(Reason::Outside(_)) => "outside",
    }
}

#[test]
fn tenant_has_its_own_directory_and_the_allowed_ones() {
    let roots = roots("/nowhere/ws", &["/nowhere/shared", "/nowhere/t/{tenant}/work"]);
    for path in ["/nowhere/ws/acme", "/nowhere/ws/acme/a/b", "/nowhere/shared/x", "/nowhere/t/acme/work/x"] {
        assert_eq!(refusal(&roots, path), "", "{path}");
    }
    for (path, why) in [
        ("/etc", "system"),
        ("/", "system"),
        ("/proc/1/root", "system"),
        ("/nowhere/ws/globex", "other"),
        ("/nowhere/ws/acme2", "other"),
        ("/nowhere/ws", "other"),
        ("/nowhere", "other"),
        ("/nowhere/t/globex/work", "other"),
        ("/nowhere/t/acme", "outside"),
        ("/nowhere/t/acme/workshop", "outside"),
        ("/nowhere/sharedx", "outside"),
        ("/elsewhere", "outside"),
    ] {
        assert_eq!(refusal(&roots, path), why, "{path}");
    }
}

#[test]
fn wide_setting_opens_neither_system_directories_nor_other_tenants() {
    let roots = roots("/nowhere/ws", &["/", "/nowhere"]);
    assert_eq!(refusal(&roots, "/elsewhere/x"), "");
    assert_eq!(refusal(&roots, "/nowhere/x"), "");
    for (path, why) in [("/etc/x", "system"), ("/nowhere/ws/globex", "other"), ("/nowhere/ws", "other")] {
        assert_eq!(refusal(&roots, path), why, "{path}");
    }
}

#[test]
fn directory_beside_those_of_tenants_can_be_shared_by_naming_it() {
    let roots = roots("/nowhere/ws", &["/nowhere/ws/shared"]);
    assert_eq!(refusal(&roots, "/nowhere/ws/shared/x"), "");
    assert_eq!(refusal(&roots, "/nowhere/ws/globex"), "other");
}

#[test]
fn data_directory_is_no_workspace_except_for_the_workspaces_in_it() {
    let within = |single_user| {
        let data = Some(PathBuf::from("/nowhere/data"));
        let options = options("/nowhere/data/workspaces", &["/nowhere"]);
        WorkspaceRoots::new(&RootOptions { data_directory: data, single_user, ..options })
    };
    for single_user in [false, true] {
        let roots = within(single_user);
        for path in ["/nowhere/data", "/nowhere/data/logs", "/nowhere/data/workspaces"] {
            assert_eq!(refusal(&roots, path), "data", "{path}");
        }
        assert_eq!(refusal(&roots, "/nowhere/data/workspaces/acme"), "");
        assert_eq!(refusal(&roots, "/nowhere/data/workspaces/globex"), "other");
    }
    assert_eq!(refusal(&within(false), "/nowhere"), "data", "it holds the data directory");
    assert_eq!(refusal(&within(true), "/nowhere"), "", "the only user may work above it");
}

#[test]
fn single_user_has_every_directory_that_is_not_refused_to_all() {
    let options = RootOptions { single_user: true, ..options("/nowhere/ws", &[]) };
    let roots = WorkspaceRoots::new(&options);
    for path in ["/elsewhere", "/nowhere", "/nowhere/ws/acme", "/tmp"] {
        assert_eq!(refusal(&roots, path), "", "{path}");
    }
    assert_eq!(refusal(&roots, "/etc"), "system");
}

#[test]
fn link_out_of_the_allowed_directories_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("ws/acme")).unwrap();
    std::fs::create_dir_all(base.join("ws/globex")).unwrap();
    symlink("/etc", base.join("ws/acme/etc")).unwrap();
    symlink("../globex", base.join("ws/acme/theirs")).unwrap();
    symlink(&base, base.join("ws/acme/out")).unwrap();
    let roots = roots(base.join("ws").to_str().unwrap(), &[]);
    let reason = |path: &str| roots.admit("acme", &base.join("ws/acme").join(path)).unwrap_err().reason;
    assert_eq!(reason("etc"), Reason::System("/etc"));
    assert_eq!(reason("etc/new"), Reason::System("/etc"));
    assert_eq!(reason("theirs"), Reason::OtherTenant);
    assert_eq!(reason("out"), Reason::OtherTenant);
    assert_eq!(reason("out/new"), Reason::Outside(vec![base.join("ws/acme")]));
    assert_eq!(roots.admit("acme", &base.join("ws/acme/new")).unwrap(), base.join("ws/acme/new"));
}

#[test]
fn allowed_directory_may_be_a_link_but_not_become_one() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    for directory in ["disk", "victim", "later"] {
        std::fs::create_dir(base.join(directory)).unwrap();
    }
    symlink("disk", base.join("link")).unwrap();
    let named = [base.join("link"), base.join("later")];
    let roots = roots("/nowhere/ws", &named.each_ref().map(|path| path.to_str().unwrap()));
    assert_eq!(roots.admit("acme", &base.join("link/x")).unwrap(), base.join("disk/x"));
    std::fs::remove_dir(base.join("later")).unwrap();
    symlink("victim", base.join("later")).unwrap();
    let refusal = roots.admit("acme", &base.join("later/x")).unwrap_err();
    assert!(matches!(refusal.reason, Reason::Outside(_)), "{refusal:?}");
}

#[test]
fn only_operators_see_paths() {
    let refusal = roots("/nowhere/ws", &["/nowhere/shared"]).check("acme", Path::new("/x")).unwrap_err();
    let told = refusal.for_operator().to_string();
    assert!(told.contains("/nowhere/ws/acme") && told.contains("/nowhere/shared"), "{told}");
    let told = refusal.for_tenant().to_string();
    assert!(!told.contains('/'), "{told}");
}

#[test]
fn setting_is_checked() {
    for good in ["/srv", "/srv/{tenant}", "/srv/{tenant}/work", "/"] {
        assert_eq!(check_allowed(Path::new(good)), Ok(()), "{good}");
    }
    for bad in ["srv", "/srv/../etc", "/etc/x", "/srv/{tenant}x", "/srv/{user}", "/{tenant}/{tenant}", ""] {
        assert!(check_allowed(Path::new(bad)).is_err(), "{bad}");
    }
}

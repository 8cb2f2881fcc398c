//! Scripts that exceed the limits of the analysis.

use PermissionAction::{Allow, Ask, Deny};
use remuda_domain::permission::PermissionAction;

use crate::{bash, workspace_rules};

const NO_RM: &str = "deny rm *";

#[test]
fn script_beyond_the_limits_is_unknown() {
    let nested = format!("{}ls{}", "$(".repeat(5000), ")".repeat(5000));
    let groups = format!("{}ls{}", "( ".repeat(5000), " )".repeat(5000));
    let arithmetic = format!("{}1{}", "$((".repeat(3000), "))".repeat(3000));
    let halves = format!("{}1{}", "$((".repeat(3000), ") )".repeat(3000));
    let quotes = "\"$(".repeat(3000);
    let ticks = format!("echo {}", "`".repeat(5000));
    let wrapped = format!("{} ls", "env ".repeat(10_000));
    let many = "ls;".repeat(2000);
    let long = "a".repeat(70_000);
    let braces = "${a:-".repeat(5000);
    let indexes = "a[ ".repeat(21_000);
    let cases = "case $(".repeat(2000);
    for command in [nested, groups, arithmetic, halves, quotes, wrapped, many, long, braces, indexes, cases] {
        assert_eq!(bash(&workspace_rules(NO_RM), &command).action(), Ask, "{}", &command[..30]);
        assert_eq!(bash(&workspace_rules(""), &command).action(), Allow);
    }
    assert_eq!(bash(&workspace_rules(NO_RM), &ticks).action(), Allow);
    let deep_enough = format!("{}rm x{}", "$(".repeat(20), ")".repeat(20));
    assert_eq!(bash(&workspace_rules(NO_RM), &deep_enough).action(), Deny);
    let last = format!("{}rm x", "ls;".repeat(900));
    assert_eq!(bash(&workspace_rules(NO_RM), &last).action(), Deny);
}

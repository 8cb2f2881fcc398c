use remuda_proto::v1;

use super::*;

fn overview(running: &[&str]) -> Overview {
    let run = |id: &&str| v1::RunGlance { run_id: (*id).to_owned(), ..Default::default() };
    let worker = v1::Worker { id: "wrk_1".into(), ..Default::default() };
    Overview(v1::GetOverviewResponse {
        running: running.iter().map(run).collect(),
        workers: vec![worker],
        ..Default::default()
    })
}

fn press(state: &mut State, overview: &Overview, keys: &[Key]) -> Option<Action> {
    keys.iter().fold(None, |_, key| state.press(*key, overview))
}

use Key::Char;

#[test]
fn q_and_ctrl_c_quit() {
    let overview = overview(&[]);
    assert_eq!(State::new().press(Char('q'), &overview), Some(Action::Quit));
    for before in [Char('?'), Char('/')] {
        assert_eq!(press(&mut State::new(), &overview, &[before, Key::Interrupt]), Some(Action::Quit));
    }
}

#[test]
fn selection_follows_its_run() {
    let (mut state, before) = (State::new(), overview(&["run_a", "run_b", "run_c"]));
    assert_eq!(press(&mut state, &before, &[Char('j'), Key::Enter]), Some(Action::Explain("run_b".into())));
    // Another run is first now.
    let after = overview(&["run_z", "run_a", "run_b"]);
    assert_eq!(press(&mut state, &after, &[Key::Enter]), Some(Action::Explain("run_b".into())));
    // A run that is gone is not selected any more.
    assert_eq!(
        press(&mut state, &overview(&["run_z"]), &[Key::Enter]),
        Some(Action::Explain("run_z".into()))
    );
    assert_eq!(press(&mut state, &after, &[Key::End, Key::Enter]), Some(Action::Explain("run_b".into())));
    assert_eq!(
        press(&mut state, &after, &[Char('j'), Char('j'), Key::Enter]),
        Some(Action::Explain("run_b".into()))
    );
    assert_eq!(
        press(&mut state, &after, &[Key::Home, Char('k'), Key::Enter]),
        Some(Action::Explain("run_z".into()))
    );
}

#[test]
fn cancel_needs_confirmation() {
    let (mut state, overview) = (State::new(), overview(&["run_a"]));
    assert_eq!(state.press(Char('c'), &overview), None);
    assert_eq!(state.mode, Mode::Confirm("run_a".into()));
    assert_eq!(state.press(Char('x'), &overview), None);
    assert_eq!(state.mode, Mode::Confirm("run_a".into()), "other keys neither confirm nor abort");
    assert_eq!((state.press(Char('n'), &overview), state.mode.clone()), (None, Mode::Panels));
    assert_eq!(press(&mut state, &overview, &[Char('c'), Char('y')]), Some(Action::Cancel("run_a".into())));
    // The confirmed run is cancelled, even if the selection has moved.
    state.press(Char('c'), &overview);
    let other = Overview::default();
    assert_eq!(state.press(Char('y'), &other), Some(Action::Cancel("run_a".into())));
    // Workers cannot be cancelled.
    let at_workers = press(&mut state, &overview, &[Key::BackTab, Char('c')]);
    assert_eq!((at_workers, state.mode.clone(), state.panel()), (None, Mode::Panels, Panel::Workers));
    assert!(state.notice.is_some());
}

#[test]
fn filter_is_typed_applied_and_cleared() {
    let (mut state, overview) = (State::new(), overview(&["run_a", "run_b"]));
    press(&mut state, &overview, &[Char('/'), Char('q'), Key::Backspace, Char('_'), Char('b')]);
    assert_eq!((state.filter.as_str(), state.mode.clone()), ("_b", Mode::Filter));
    state.press(Key::Enter, &overview);
    assert_eq!(state.keys(Panel::Running, &overview), ["run_b"]);
    assert_eq!(state.press(Key::Enter, &overview), Some(Action::Explain("run_b".into())));
    state.press(Key::Escape, &overview);
    assert_eq!(state.keys(Panel::Running, &overview).len(), 2);
}

#[test]
fn keys_pause_sort_and_change_panels() {
    let (mut state, overview) = (State::new(), overview(&["run_a"]));
    assert_eq!((state.press(Char('p'), &overview), state.paused), (None, true));
    assert_eq!((state.press(Char('p'), &overview), state.paused), (Some(Action::Refresh), false));
    assert_eq!(state.order(Panel::Running), Order::Time);
    state.press(Char('s'), &overview);
    assert_eq!((state.order(Panel::Running), state.order(Panel::Waiting)), (Order::Cost, Order::Time));
    press(&mut state, &overview, &[Char('s'), Char('s')]);
    assert_eq!(state.order(Panel::Running), Order::Time);
    let mut seen = Vec::new();
    for _ in 0..4 {
        state.press(Key::Tab, &overview);
        seen.push(state.panel());
    }
    assert_eq!(seen, [Panel::Waiting, Panel::Pools, Panel::Workers, Panel::Running]);
}

#[test]
fn popup_receives_keys_until_it_is_closed() {
    let (mut state, overview) = (State::new(), overview(&["run_a"]));
    let popup = Popup { lines: vec![String::new(); 3], ..Popup::default() };
    state.mode = Mode::Popup(popup.clone());
    press(&mut state, &overview, &[Key::Down, Key::PageDown]);
    state.scroll_at_most(2);
    assert_eq!(state.mode, Mode::Popup(Popup { scroll: 2, ..popup }));
    assert_eq!(
        (state.press(Char('q'), &overview), state.mode.clone()),
        (None, Mode::Panels),
        "it closes only the popup"
    );
    state.press(Char('?'), &overview);
    assert_eq!(state.mode, Mode::Help);
    state.press(Char('x'), &overview);
    assert_eq!(state.mode, Mode::Panels);
}

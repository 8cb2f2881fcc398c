use remuda_proto::v1;

use super::*;

fn look(running: &[&str]) -> Look {
    let run = |id: &&str| v1::RunGlance { run_id: (*id).to_owned(), ..Default::default() };
    let worker = v1::Worker { id: "wrk_1".into(), ..Default::default() };
    Look(v1::GetOverviewResponse {
        running: running.iter().map(run).collect(),
        workers: vec![worker],
        ..Default::default()
    })
}

fn press(state: &mut State, look: &Look, keys: &[Key]) -> Option<Action> {
    keys.iter().fold(None, |_, key| state.press(*key, look))
}

use Key::Char;

#[test]
fn q_and_ctrl_c_quit() {
    let look = look(&[]);
    assert_eq!(State::new().press(Char('q'), &look), Some(Action::Quit));
    for before in [Char('?'), Char('/')] {
        assert_eq!(press(&mut State::new(), &look, &[before, Key::Interrupt]), Some(Action::Quit));
    }
}

#[test]
fn a_selection_stays_with_its_run() {
    let (mut state, before) = (State::new(), look(&["run_a", "run_b", "run_c"]));
    assert_eq!(press(&mut state, &before, &[Char('j'), Key::Enter]), Some(Action::Explain("run_b".into())));
    // Another one is slower now.
    let after = look(&["run_z", "run_a", "run_b"]);
    assert_eq!(press(&mut state, &after, &[Key::Enter]), Some(Action::Explain("run_b".into())));
    // What is gone is selected no more.
    assert_eq!(press(&mut state, &look(&["run_z"]), &[Key::Enter]), Some(Action::Explain("run_z".into())));
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
fn cancelling_is_asked_about() {
    let (mut state, look) = (State::new(), look(&["run_a"]));
    assert_eq!(state.press(Char('c'), &look), None);
    assert_eq!(state.mode, Mode::Confirm("run_a".into()));
    assert_eq!(state.press(Char('x'), &look), None);
    assert_eq!(state.mode, Mode::Confirm("run_a".into()), "only an answer is one");
    assert_eq!((state.press(Char('n'), &look), state.mode.clone()), (None, Mode::Lists));
    assert_eq!(press(&mut state, &look, &[Char('c'), Char('y')]), Some(Action::Cancel("run_a".into())));
    // It is the run that was asked about, wherever the selection is by now.
    state.press(Char('c'), &look);
    let other = Look::default();
    assert_eq!(state.press(Char('y'), &other), Some(Action::Cancel("run_a".into())));
    // Workers are not cancelled.
    let at_workers = press(&mut state, &look, &[Key::BackTab, Char('c')]);
    assert_eq!((at_workers, state.mode.clone(), state.panel()), (None, Mode::Lists, Panel::Workers));
    assert!(state.notice.is_some());
}

#[test]
fn a_filter_is_typed_and_taken_back() {
    let (mut state, look) = (State::new(), look(&["run_a", "run_b"]));
    press(&mut state, &look, &[Char('/'), Char('q'), Key::Backspace, Char('_'), Char('b')]);
    assert_eq!((state.filter.as_str(), state.mode.clone()), ("_b", Mode::Filter));
    state.press(Key::Enter, &look);
    assert_eq!(state.keys(Panel::Running, &look), ["run_b"]);
    assert_eq!(state.press(Key::Enter, &look), Some(Action::Explain("run_b".into())));
    state.press(Key::Escape, &look);
    assert_eq!(state.keys(Panel::Running, &look).len(), 2);
}

#[test]
fn pausing_sorting_and_panels() {
    let (mut state, look) = (State::new(), look(&["run_a"]));
    assert_eq!((state.press(Char('p'), &look), state.paused), (None, true));
    assert_eq!((state.press(Char('p'), &look), state.paused), (Some(Action::Refresh), false));
    assert_eq!(state.order(Panel::Running), Order::Time);
    state.press(Char('s'), &look);
    assert_eq!((state.order(Panel::Running), state.order(Panel::Waiting)), (Order::Cost, Order::Time));
    press(&mut state, &look, &[Char('s'), Char('s')]);
    assert_eq!(state.order(Panel::Running), Order::Time);
    let mut seen = Vec::new();
    for _ in 0..4 {
        state.press(Key::Tab, &look);
        seen.push(state.panel());
    }
    assert_eq!(seen, [Panel::Waiting, Panel::Pools, Panel::Workers, Panel::Running]);
}

#[test]
fn a_popup_has_the_keys_until_it_is_closed() {
    let (mut state, look) = (State::new(), look(&["run_a"]));
    let popup = Popup { lines: vec![String::new(); 3], ..Popup::default() };
    state.mode = Mode::Popup(popup.clone());
    press(&mut state, &look, &[Key::Down, Key::PageDown]);
    state.scroll_at_most(2);
    assert_eq!(state.mode, Mode::Popup(Popup { scroll: 2, ..popup }));
    assert_eq!(
        (state.press(Char('q'), &look), state.mode.clone()),
        (None, Mode::Lists),
        "it closes only the popup"
    );
    state.press(Char('?'), &look);
    assert_eq!(state.mode, Mode::Help);
    state.press(Char('x'), &look);
    assert_eq!(state.mode, Mode::Lists);
}

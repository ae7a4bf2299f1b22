//! An attached export as `status` and `detach` see it.

use std::sync::Arc;
use std::time::Instant;

use kaeru_common::units::about_time;
use kaeru_common::wire::activity::Activity;
use tokio::sync::watch;

use crate::background::{Answer, Detached, Note, Report};
use crate::nbd::front::Front;

/// What lets go of an attachment; it is told whether to although it is in use.
pub type LetGo = Box<dyn Fn(bool) -> Detached + Send + Sync>;

/// One attached export.
pub struct Attachment {
    front: Arc<Front>,
    note: Note,
    /// Tells the process to end.
    ask: watch::Sender<bool>,
    let_go: LetGo,
}

impl Attachment {
    /// The attachment behind `front`; `ask` makes the process end once `let_go` has let go.
    pub fn new(front: Arc<Front>, note: Note, ask: watch::Sender<bool>, let_go: LetGo) -> Self {
        Self { front, note, ask, let_go }
    }
}

impl Answer for Attachment {
    fn report(&self) -> Report {
        let session = self.front.session();
        let (granted, route, totals) = (session.granted(), session.route(), self.front.totals());
        // In a statement of its own: who holds a borrow must wait for nothing, since the session waits for him.
        let health = session.health().borrow().clone();
        let (state, detail) = match (health.closed, health.silent_since) {
            (Some(reason), _) => ("lost", Some(format!("{reason}; requests fail with I/O errors"))),
            (None, Some(since)) => {
                let text = format!(
                    "the server has said nothing for {}; lanes that work go on",
                    about_time(since.elapsed())
                );
                ("silent", Some(text))
            }
            (None, None) if totals.lost() > 0 => {
                let text = format!(
                    "{} of {} lanes are lost, and what goes over them fails with I/O errors; detach and attach again",
                    totals.lost(),
                    totals.lanes()
                );
                ("degraded", Some(text))
            }
            (None, None) => ("ok", None),
        };
        Report {
            note: self.note.clone(),
            state: state.into(),
            detail,
            trouble: None,
            server: Some(session.welcome().server.to_string()),
            session: Some(granted.session.to_string()),
            size: Some(granted.size),
            read_only: Some(granted.read_only),
            fabric: route.as_ref().map(|route| route.fabric.to_string()),
            fabric_reason: route.map(|route| route.why),
            lanes: totals.lanes(),
            io: Activity::of(totals, Instant::now()),
        }
    }

    fn detach(&self, force: bool) -> Detached {
        (self.let_go)(force)
    }

    fn farewell(&self) {
        self.ask.send_replace(true);
    }
}

//! The event loop: keys, rounds and drawing.

use std::io::{self, Stdout};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use crossterm::event::{self, Event, KeyEvent};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::{Position, Rect};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::commands::top::model::{Focus, Model, Order, Problem, Round};
use crate::commands::top::state::{Effect, State};
use crate::commands::top::view::{Theme, TopShown};

/// Redraw interval without events, since ages on the screen grow all the time.
const REDRAW: Duration = Duration::from_secs(1);

/// Interval at which the thread that reads keys checks whether the receiver still exists.
const GLANCE: Duration = Duration::from_millis(250);

/// An input of the user.
#[derive(Debug)]
pub(crate) enum TopInput {
    Key(KeyEvent),
    Resized,
    /// The end of the input.
    Ended(io::Error),
}

/// A terminal in raw mode on the alternate page. Dropping it restores the terminal; a panic does so too.
#[derive(Debug)]
pub(crate) struct Raw(());

impl Raw {
    pub(crate) fn take() -> Result<Self> {
        // Also sets a panic hook that restores the terminal before the message is printed.
        ratatui::try_init().context("the terminal cannot be used")?;
        Ok(Self(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The alternate page hides the cursor, and leaving it does not show it again.
        let shown = crossterm::execute!(io::stdout(), crossterm::cursor::Show);
        if let Err(error) = shown.and_then(|()| ratatui::try_restore()) {
            eprintln!("the terminal could not be put right, `reset` does: {error}");
        }
    }
}

/// Returns a terminal that draws on stdout.
///
/// # Errors
/// If stdout cannot be drawn on.
pub(crate) fn stdout() -> Result<Terminal<CrosstermBackend<Stdout>>> {
    Terminal::new(CrosstermBackend::new(io::stdout())).context("the terminal cannot be used")
}

/// Reads keys on a separate thread, until the receiver is dropped.
pub(crate) fn keys() -> mpsc::Receiver<TopInput> {
    let (send, keys) = mpsc::channel(64);
    let wait = move || {
        loop {
            let input = match event::poll(GLANCE)
                .and_then(|came| if came { event::read().map(Some) } else { Ok(None) })
            {
                Ok(Some(Event::Key(key))) => TopInput::Key(key),
                Ok(Some(Event::Resize(..))) => TopInput::Resized,
                Ok(None) if send.is_closed() => return,
                Ok(_) => continue,
                Err(error) => TopInput::Ended(error),
            };
            let last = matches!(input, TopInput::Ended(_));
            if send.blocking_send(input).is_err() || last {
                return;
            }
        }
    };
    // Without the thread the channel closes immediately, which ends the screen.
    drop(thread::Builder::new().name("keys".to_owned()).spawn(wait));
    keys
}

/// The state of the event loop.
pub(crate) struct Screen<B: Backend> {
    terminal: Terminal<B>,
    keys: mpsc::Receiver<TopInput>,
    rounds: mpsc::Receiver<Round>,
    focus: watch::Sender<Focus>,
    orders: mpsc::Sender<Order>,
    model: Model,
    /// The model that is shown while the screen is frozen.
    frozen: Option<Model>,
    state: State,
    started: Instant,
    interval: Duration,
    theme: Theme,
}

impl<B: Backend> Screen<B>
where
    B::Error: Send + Sync + 'static,
{
    pub(crate) fn new(
        terminal: Terminal<B>,
        keys: mpsc::Receiver<TopInput>,
        rounds: mpsc::Receiver<Round>,
        (focus, orders): (watch::Sender<Focus>, mpsc::Sender<Order>),
        interval: Duration,
        colours: bool,
    ) -> Self {
        let (model, state, theme) = (Model::default(), State::default(), Theme { colours });
        let started = Instant::now();
        Self { terminal, keys, rounds, focus, orders, model, frozen: None, state, started, interval, theme }
    }

    /// Runs until the user quits.
    ///
    /// # Errors
    /// If the terminal cannot be read or written.
    pub(crate) async fn run(&mut self) -> Result<()> {
        self.draw()?;
        while self.run_once().await? {}
        Ok(())
    }

    /// Waits for a key or a round, and draws the result; returns `false` when the loop must end.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub(crate) async fn run_once(&mut self) -> Result<bool> {
        let came = async {
            tokio::select! {
                biased;
                input = self.keys.recv() => Came::Input(input),
                round = self.rounds.recv() => Came::Round(round.map(Box::new)),
            }
        };
        match timeout(REDRAW, came).await {
            Ok(Came::Input(Some(TopInput::Key(key)))) => {
                let model = self.frozen.as_ref().unwrap_or(&self.model);
                match self.state.press(key, model) {
                    Effect::Quit => return Ok(false),
                    Effect::Redraw => self.anew()?,
                    // A few orders are queued if the server is slow; beyond that the user is notified, and the order
                    // is dropped.
                    Effect::Order(order) => {
                        if self.orders.try_send(order).is_err() {
                            let (doing, error) =
                                ("do that".to_owned(), "too much is waiting already".to_owned());
                            let problems = vec![Problem { doing, topic: None, error, transient: true }];
                            self.model.take(Round {
                                at: self.started.elapsed(),
                                problems,
                                ..Round::default()
                            });
                        }
                    }
                    Effect::Nothing => {}
                }
                if self.state.frozen != self.frozen.is_some() {
                    self.frozen = self.state.frozen.then(|| self.model.clone());
                }
            }
            // Redraws even if the size is unchanged: the terminal may have been smaller for a moment, and lost its
            // content.
            Ok(Came::Input(Some(TopInput::Resized))) => {
                self.anew()?;
            }
            Ok(Came::Input(Some(TopInput::Ended(error)))) => {
                return Err(error).context("the terminal cannot be read");
            }
            Ok(Came::Input(None)) => return Err(anyhow!("the terminal cannot be read")),
            Ok(Came::Round(Some(round))) => {
                self.model.take(*round);
                self.state.stand_on_group(self.frozen.as_ref().unwrap_or(&self.model));
            }
            Ok(Came::Round(None)) => return Err(anyhow!("the sampler has ended")),
            // A timeout without events.
            Err(_) => {}
        }
        self.draw()?;
        Ok(true)
    }

    /// Redraws everything. `Terminal::clear` would query the cursor position of the terminal, and wait for a reply
    /// that the thread that reads keys receives.
    fn anew(&mut self) -> Result<()> {
        let size = self.terminal.size()?;
        Ok(self.terminal.resize(Rect::from((Position::ORIGIN, size)))?)
    }

    fn draw(&mut self) -> Result<()> {
        let model = self.frozen.as_ref().unwrap_or(&self.model);
        let focus = self.state.focus(model);
        self.focus.send_if_modified(|now| {
            let other = *now != focus;
            if other {
                *now = focus;
            }
            other
        });
        let stale_after = (self.interval * 3).max(Duration::from_secs(3)).max(model.took * 20);
        let (state, now, theme) = (&self.state, self.started.elapsed(), self.theme);
        self.terminal.draw(|frame| TopShown { model, state, now, stale_after, theme }.draw(frame))?;
        Ok(())
    }
}

enum Came {
    Input(Option<TopInput>),
    Round(Option<Box<Round>>),
}

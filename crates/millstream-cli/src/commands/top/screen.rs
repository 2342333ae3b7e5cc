//! The loop between keys, rounds and a terminal.

use std::io::{self, Stdout};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::layout::{Position, Rect};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::model::Model;
use super::round::{Focus, Order, Problem, Round};
use super::state::{Effect, State};
use super::view::{Shown, Theme};

/// Ages on the screen grow also while nothing comes.
const REDRAW: Duration = Duration::from_secs(1);

/// How often the thread that waits for keys looks whether anybody still wants them.
const GLANCE: Duration = Duration::from_millis(250);

/// What a user does.
#[derive(Debug)]
pub(crate) enum Input {
    Key(KeyEvent),
    Resized,
    /// There will be no more.
    Ended(io::Error),
}

/// A terminal that gives each key as it is pressed, and shows a page of its own. Dropped, it is as it was before; that
/// is so too after a panic.
#[derive(Debug)]
pub(crate) struct Raw(());

impl Raw {
    pub(crate) fn take() -> Result<Self> {
        // Also sets a panic hook that puts the terminal right before it says what happened.
        ratatui::try_init().context("the terminal cannot be used")?;
        Ok(Self(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The alternate page hides the cursor, and leaving it does not bring it back.
        let shown = ratatui::crossterm::execute!(io::stdout(), ratatui::crossterm::cursor::Show);
        if let Err(error) = shown.and_then(|()| ratatui::try_restore()) {
            eprintln!("the terminal could not be put right, `reset` does: {error}");
        }
    }
}

/// Draws on stdout.
///
/// # Errors
/// If it is none that can be drawn on.
pub(crate) fn stdout() -> Result<Terminal<CrosstermBackend<Stdout>>> {
    Terminal::new(CrosstermBackend::new(io::stdout())).context("the terminal cannot be used")
}

/// Waits for keys on a thread of its own, until nobody wants them.
pub(crate) fn keys() -> mpsc::Receiver<Input> {
    let (send, keys) = mpsc::channel(64);
    let wait = move || {
        loop {
            let input = match event::poll(GLANCE)
                .and_then(|came| if came { event::read().map(Some) } else { Ok(None) })
            {
                Ok(Some(Event::Key(key))) => Input::Key(key),
                Ok(Some(Event::Resize(..))) => Input::Resized,
                Ok(None) if send.is_closed() => return,
                Ok(_) => continue,
                Err(error) => Input::Ended(error),
            };
            let last = matches!(input, Input::Ended(_));
            if send.blocking_send(input).is_err() || last {
                return;
            }
        }
    };
    // Without the thread the channel closes at once, and that ends the screen.
    drop(thread::Builder::new().name("keys".to_owned()).spawn(wait));
    keys
}

/// Everything that the loop has.
pub(crate) struct Screen<B: Backend> {
    terminal: Terminal<B>,
    keys: mpsc::Receiver<Input>,
    rounds: mpsc::Receiver<Round>,
    focus: watch::Sender<Focus>,
    orders: mpsc::Sender<Order>,
    model: Model,
    /// What is shown instead while the screen is frozen.
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
        keys: mpsc::Receiver<Input>,
        rounds: mpsc::Receiver<Round>,
        (focus, orders): (watch::Sender<Focus>, mpsc::Sender<Order>),
        interval: Duration,
        colours: bool,
    ) -> Self {
        let (model, state, theme) = (Model::default(), State::default(), Theme { colours });
        let started = Instant::now();
        Self { terminal, keys, rounds, focus, orders, model, frozen: None, state, started, interval, theme }
    }

    /// Goes on until somebody quits.
    ///
    /// # Errors
    /// If the terminal cannot be read or written.
    pub(crate) async fn run(&mut self) -> Result<()> {
        self.draw()?;
        while self.run_once().await? {}
        Ok(())
    }

    /// Waits for a key or a round, and shows what comes of it; `false` when it is time to go.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) async fn run_once(&mut self) -> Result<bool> {
        let came = async {
            tokio::select! {
                biased;
                input = self.keys.recv() => Came::Input(input),
                round = self.rounds.recv() => Came::Round(round.map(Box::new)),
            }
        };
        match timeout(REDRAW, came).await {
            Ok(Came::Input(Some(Input::Key(key)))) => {
                let model = self.frozen.as_ref().unwrap_or(&self.model);
                match self.state.press(key, model) {
                    Effect::Quit => return Ok(false),
                    Effect::Redraw => self.anew()?,
                    // A few wait, if the server is slow; that there are more is told, and nothing is done.
                    Effect::Order(order) => {
                        if self.orders.try_send(order).is_err() {
                            let (doing, error) =
                                ("do that".to_owned(), "too much is waiting already".to_owned());
                            let problems = vec![Problem { doing, error, transient: true }];
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
            // Anew, also if it is as large as before: it may have been smaller for a moment, and lost what it had.
            Ok(Came::Input(Some(Input::Resized))) => {
                self.anew()?;
            }
            Ok(Came::Input(Some(Input::Ended(error)))) => {
                return Err(error).context("the terminal cannot be read");
            }
            Ok(Came::Input(None)) => return Err(anyhow!("the terminal cannot be read")),
            Ok(Came::Round(Some(round))) => {
                self.model.take(*round);
                self.state.stand_on_group(self.frozen.as_ref().unwrap_or(&self.model));
            }
            Ok(Came::Round(None)) => return Err(anyhow!("whatever asks the server has ended")),
            // Nothing came.
            Err(_) => {}
        }
        self.draw()?;
        Ok(true)
    }

    /// Has everything drawn again. `Terminal::clear` would ask the terminal for its cursor, and wait for an answer that
    /// the thread of the keys gets.
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
        let patience = (self.interval * 3).max(Duration::from_secs(3)).max(model.took * 20);
        let (state, now, theme) = (&self.state, self.started.elapsed(), self.theme);
        self.terminal.draw(|frame| Shown { model, state, now, patience, theme }.draw(frame))?;
        Ok(())
    }
}

enum Came {
    Input(Option<Input>),
    Round(Option<Box<Round>>),
}

//! Forms: filters, which read, and actions, which change something.

use super::href::Href;
use super::text::Text;

/// Button that sends a form of its own: one action on one thing.
#[derive(Clone, Debug)]
pub(crate) struct Button {
    pub(crate) label: &'static str,
    /// The label for screen readers, which also names the object: `run now: welcome-42`.
    pub(crate) on: Text,
    pub(crate) action: Href,
    /// Values as they are sent back: not as they are shown.
    pub(crate) hidden: Vec<(&'static str, String)>,
    pub(crate) danger: bool,
}

impl Button {
    pub(crate) fn new(label: &'static str, on: impl Into<Text>, action: Href) -> Self {
        Self { label, on: on.into(), action, hidden: Vec::new(), danger: false }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.hidden.push((name, value.into()));
        self
    }

    pub(crate) fn danger(self) -> Self {
        Self { danger: true, ..self }
    }
}

/// Kind of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Line,
    Number {
        min: u64,
        max: u64,
    },
    Area,
    /// Value and label of each choice.
    Choice(Vec<(String, String)>),
}

/// Field of a form.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) label: String,
    /// Value as it is sent back: the browser shows it in a field.
    pub(crate) value: String,
    pub(crate) input: Input,
    pub(crate) hint: Option<Text>,
    pub(crate) required: bool,
}

impl Field {
    pub(crate) fn new(name: &'static str, label: impl Into<String>, value: impl Into<String>) -> Self {
        let (label, value) = (label.into(), value.into());
        Self { name, label, value, input: Input::Line, hint: None, required: false }
    }

    pub(crate) fn input(self, input: Input) -> Self {
        Self { input, ..self }
    }

    pub(crate) fn hint(self, hint: impl Into<Text>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// Form of a page.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) title: String,
    pub(crate) action: Href,
    /// Whether it changes something: it is sent by POST then.
    pub(crate) changes: bool,
    pub(crate) danger: bool,
    pub(crate) fields: Vec<Field>,
    pub(crate) hidden: Vec<(&'static str, String)>,
    pub(crate) submit: String,
}

impl Form {
    /// A form that reads.
    pub(crate) fn filter(title: impl Into<String>, action: Href, fields: Vec<Field>) -> Self {
        let (title, submit, hidden) = (title.into(), "Show".to_owned(), Vec::new());
        Self { title, action, changes: false, danger: false, fields, hidden, submit }
    }

    /// A form that changes something.
    pub(crate) fn action(
        title: impl Into<String>,
        action: Href,
        fields: Vec<Field>,
        submit: impl Into<String>,
    ) -> Self {
        let hidden = Vec::new();
        Self {
            title: title.into(),
            action,
            changes: true,
            danger: false,
            fields,
            hidden,
            submit: submit.into(),
        }
    }

    pub(crate) fn danger(self) -> Self {
        Self { danger: true, ..self }
    }

    pub(crate) fn hide(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.hidden.push((name, value.into()));
        self
    }
}

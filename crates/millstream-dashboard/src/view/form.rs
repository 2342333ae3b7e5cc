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
    /// Why its value was refused.
    pub(crate) error: Option<Text>,
}

impl Field {
    pub(crate) fn new(name: &'static str, label: impl Into<String>, value: impl Into<String>) -> Self {
        let (label, value) = (label.into(), value.into());
        Self { name, label, value, input: Input::Line, hint: None, required: false, error: None }
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
    /// Whether it has so many fields that only its title is shown until one is filled, or the title is clicked.
    pub(crate) folds: bool,
    pub(crate) fields: Vec<Field>,
    pub(crate) hidden: Vec<(&'static str, String)>,
    pub(crate) submit: String,
}

impl Form {
    /// A form that reads.
    pub(crate) fn filter(title: impl Into<String>, action: Href, fields: Vec<Field>) -> Self {
        let (title, submit, hidden) = (title.into(), "Show".to_owned(), Vec::new());
        Self { title, action, changes: false, danger: false, folds: false, fields, hidden, submit }
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
            folds: false,
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

    pub(crate) fn folding(self) -> Self {
        Self { folds: true, ..self }
    }

    /// Returns whether a field has something else than at first.
    pub(crate) fn is_filled(&self) -> bool {
        self.fields.iter().any(|field| match &field.input {
            Input::Choice(choices) => choices.first().is_some_and(|(first, _)| *first != field.value),
            // A number is that of the rows, which is no condition.
            Input::Number { .. } => field.error.is_some(),
            _ => !field.value.is_empty(),
        })
    }

    /// Returns whether it has a field of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    /// Fills its fields with what was sent, and says beside a field why that was refused.
    pub(crate) fn refuse(&mut self, value: impl Fn(&str) -> Option<String>, error: Option<(&str, &str)>) {
        for field in &mut self.fields {
            field.value = value(field.name).unwrap_or_else(|| std::mem::take(&mut field.value));
            field.error = error.filter(|(name, _)| *name == field.name).map(|(_, why)| why.into());
        }
    }
}

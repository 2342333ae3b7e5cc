//! Schemas of messages as lines of JSON.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::commands::message::json::write::JsonLineWriter;
use crate::commands::message::{Body, MessageView};

/// Written by hand, as the fields depend on the bytes.
impl JsonSchema for Body {
    fn schema_name() -> Cow<'static, str> {
        "Body".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let bytes = json_schema!({
            "description": "Text; or bytes that are not text.",
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "base64": { "type": "string" } },
                    "required": ["base64"],
                },
            ],
        });
        json_schema!({
            "type": "object",
            "properties": {
                "key": { "description": "`null` if there is none.", "type": ["string", "null"] },
                "key_base64": { "description": "In place of `key`, if it is not text.", "type": "string" },
                "headers": {
                    "description": "Values by name, a list of values where a name is repeated; or pairs of name and \
                                    value, where an object would not keep their order.",
                    "anyOf": [
                        {
                            "type": "object",
                            "additionalProperties": { "anyOf": [bytes, { "type": "array", "items": bytes }] },
                        },
                        {
                            "type": "array",
                            "items": {
                                "type": "array",
                                "prefixItems": [{ "type": "string" }, bytes],
                                "minItems": 2,
                                "maxItems": 2,
                            },
                        },
                    ],
                },
                "payload": {
                    "description": "Text; or the JSON object or array that the text is.",
                    "type": ["string", "object", "array"],
                },
                "payload_base64": {
                    "description": "In place of `payload`, if it is not text.",
                    "type": "string",
                },
                "malformed": {
                    "description": "Why the entry is no message. It has `fields` then, and no key, headers or payload.",
                    "type": "string",
                },
                "fields": {
                    "description": "Names and values of the fields of an entry that is no message.",
                    "type": "array",
                    "items": { "type": "array", "items": bytes, "minItems": 2, "maxItems": 2 },
                },
            },
            "oneOf": [
                {
                    "required": ["headers"],
                    "allOf": [
                        { "oneOf": [{ "required": ["key"] }, { "required": ["key_base64"] }] },
                        { "oneOf": [{ "required": ["payload"] }, { "required": ["payload_base64"] }] },
                    ],
                },
                { "required": ["malformed", "fields"] },
            ],
        })
    }
}

impl JsonSchema for MessageView {
    fn schema_name() -> Cow<'static, str> {
        "Message".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        JsonLineWriter::json_schema(generator)
    }
}

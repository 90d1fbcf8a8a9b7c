//! The OpenAPI 3.1 document, made from the table of routes and the types they take and answer.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::access::Permission;
use super::problem::Problem;
use super::route::{Entry, Manner, Table};
use crate::resource::Role;

/// Schemas as OpenAPI 3.1 has them: JSON Schema 2020-12, shared ones under `components`.
pub(super) fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    settings.into_generator()
}

/// The document.
pub(super) fn document(table: &mut Table) -> Value {
    let problem = table.generator.subschema_for::<Problem>();
    let envelope = table.generator.subschema_for::<super::hyperstack::Refused>();
    let mut paths = Map::new();
    for entry in &table.entries {
        if entry.permission == Permission::Agent {
            continue;
        }
        let refused = match entry.manner {
            Manner::Problems => json!({"application/problem+json": {"schema": problem}}),
            Manner::Hyperstack => json!({"application/json": {"schema": envelope}}),
        };
        let item = paths.entry(entry.path).or_insert_with(|| json!({}));
        item[entry.method.as_str().to_ascii_lowercase()] = operation(entry, &refused);
    }
    let schemas: Value = table.generator.take_definitions(true).into();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lanekeeper",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "High-performance Ethernet networks for VMs: VMs on VFs, RoCE networks, \
                placement. Paths under /v1/core are the subset of the Hyperstack API that its public \
                clients need; the others are Lanekeeper's own."
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, lk_..."},
                "api_key": {"type": "apiKey", "in": "header", "name": "api_key",
                    "description": "The same key, as clients of the Hyperstack API send it."}
            }
        }
    })
}

fn operation(entry: &Entry, refused: &Value) -> Value {
    let answer = match &entry.answer {
        None => json!({"description": "Done."}),
        Some((kind, schema)) => {
            json!({"description": "Done.", "content": {*kind: {"schema": schema}}})
        }
    };
    let mut answers = Map::from_iter([(entry.status.as_u16().to_string(), answer)]);
    for (status, why) in refusals(entry) {
        answers.insert(status.to_string(), json!({"description": why, "content": refused}));
    }
    let mut operation = json!({
        "operationId": operation_id(entry),
        "tags": [entry.tag],
        "summary": entry.about,
        "description": whom(entry.permission),
        "parameters": parameters(entry),
        "responses": answers,
        "security": security(entry),
    });
    if let Some(schema) = &entry.body_schema {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

fn operation_id(entry: &Entry) -> String {
    let words = entry.path.split('/').filter(|word| !word.is_empty() && *word != "v1");
    let words: Vec<String> = words.map(|word| word.replace(['{', '}'], "")).collect();
    format!("{}_{}", entry.method.as_str().to_ascii_lowercase(), words.join("_")).replace('-', "_")
}

fn whom(permission: Permission) -> &'static str {
    match permission {
        Permission::Public => "For everybody.",
        Permission::Role(Role::Reader) => "For keys with any role.",
        Permission::Role(Role::Member) => "For keys with the role member or more.",
        Permission::Role(Role::Admin) => "For keys with the role admin or operator.",
        Permission::Role(Role::Operator) => "For keys with the role operator.",
        Permission::Agent => "For agents.",
    }
}

fn security(entry: &Entry) -> Value {
    match entry.permission {
        Permission::Public | Permission::Agent => json!([]),
        Permission::Role(_) => json!([{"bearer": []}, {"api_key": []}]),
    }
}

/// What a route may be answered instead, beside what the engine itself refuses.
fn refusals(entry: &Entry) -> Vec<(u16, &'static str)> {
    let native = entry.manner == Manner::Problems;
    let mut all = vec![
        (400, "The request cannot be read."),
        (429, "Too many calls; wait."),
        (500, "The store failed; the server's log says how."),
        (503, "The server cannot serve now; try again."),
    ];
    if matches!(entry.permission, Permission::Role(_)) {
        all.push((401, "The API key is not known."));
        all.push((403, "The key may not do this."));
        all.push((404, "There is no such thing, or it is another organization's."));
    }
    if entry.path.contains("enrol") {
        all.push((403, "The token is not good."));
    }
    if entry.changes {
        all.push((409, "Something is in the way; the detail says what."));
        all.push((413, "The body is too large."));
    }
    if entry.changes && native {
        all.push((412, "It was changed since the entity tag in If-Match."));
        all.push((422, "A value is not usable; the detail says which, and why."));
    }
    if entry.body_schema.is_some() && native {
        all.push((415, "The body is not JSON."));
    }
    all
}

fn parameters(entry: &Entry) -> Vec<Value> {
    let mut all = listed(&entry.path_schema, "path");
    all.extend(listed(&entry.query_schema, "query"));
    if entry.changes && entry.manner == Manner::Problems {
        if entry.method == axum::http::Method::POST {
            all.push(json!({
                "name": "Idempotency-Key", "in": "header", "required": false,
                "description": "The same request, sent again with the same key within a day, is done \
                    once and answered the same.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
            }));
        } else {
            all.push(json!({
                "name": "If-Match", "in": "header", "required": false,
                "description": "The ETag of an answer: it is done only if nothing was changed since.",
                "schema": {"type": "string", "pattern": "^(\\*|\"[0-9]{1,18}\")$"}
            }));
        }
    }
    all
}

/// The properties of a schema as parameters.
fn listed(schema: &Schema, place: &str) -> Vec<Value> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Vec::new();
    };
    let required = schema.get("required").and_then(Value::as_array);
    let one = |(name, schema): (&String, &Value)| {
        let needed = required.is_some_and(|names| names.iter().any(|one| one == name));
        let mut schema = schema.clone();
        let about = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        json!({
            "name": name,
            "in": place,
            "required": needed || place == "path",
            "description": about.unwrap_or_default(),
            "schema": without_null(schema),
        })
    };
    properties.iter().map(one).collect()
}

/// A query has no null: what may be left out is left out.
fn without_null(mut schema: Value) -> Value {
    if let Some(kinds) = schema.get_mut("type").and_then(Value::as_array_mut) {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            schema["type"] = kind.clone();
        }
    }
    if let Some(choices) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        choices.retain(|choice| choice.get("type").is_none_or(|kind| kind != "null"));
    }
    if let Some(object) = schema.as_object_mut() {
        object.remove("default");
    }
    schema
}

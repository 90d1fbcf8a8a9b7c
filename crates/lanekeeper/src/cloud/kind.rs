//! What is the same for every kind of resource: listing, finding one by name or id, showing it, making
//! one, deleting it. Kind, path and noun are those of the API's own types.

use std::convert::Infallible;
use std::str::FromStr;

use lanekeeper_client::{Error, Method};
use lanekeeper_control::resource::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::connect::Session;
use super::table::{Row, joined, print_json, print_one, print_rows};
use crate::Failure;
use crate::output::print;

/// Most in a page (the API's own limit).
const PAGE: &str = "1000";

/// One resource, as a person names it. Digits are an id.
#[derive(Clone)]
pub(super) enum Which {
    Id(u64),
    Name(String),
}

impl FromStr for Which {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Id))
    }
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Value>,
    next: Option<Value>,
}

fn path_of<T: Resource>(id: u64) -> String {
    format!("/v1/{}/{id}", T::KIND)
}

/// As one of a kind.
pub(super) fn read<T: DeserializeOwned>(value: &Value) -> Result<T, Failure> {
    T::deserialize(value).map_err(|error| {
        Failure::Work(format!("the server's answer is not understood: {error}; see it with --json"))
    })
}

/// All that there are at a path, page after page.
pub(super) fn all(
    session: &Session,
    path: &str,
    query: &[(&str, &str)],
) -> Result<Vec<Value>, Error> {
    let (mut items, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut call = session.client.call(Method::GET, path).query("limit", PAGE);
        for (name, value) in query {
            call = call.query(name, value);
        }
        if let Some(after) = &after {
            call = call.query("after", after);
        }
        let page: Page = call.send()?.body;
        items.extend(page.items);
        match page.next {
            Some(Value::String(next)) => after = Some(next),
            Some(next) => after = Some(next.to_string()),
            None => return Ok(items),
        }
    }
}

/// Print some of them.
pub(super) fn print_all<T: Row + DeserializeOwned>(
    session: &Session,
    items: &[Value],
) -> Result<(), Failure> {
    if session.json {
        return print_json(&json!({ "items": items }));
    }
    print_rows::<T>(&items.iter().map(read).collect::<Result<Vec<_>, _>>()?)
}

/// Print one.
pub(super) fn print_it<T: Row + DeserializeOwned>(
    session: &Session,
    value: &Value,
) -> Result<(), Failure> {
    if session.json { print_json(value) } else { print_one(&read::<T>(value)?) }
}

/// List all of a kind.
pub(super) fn list<T: Resource + Row>(session: &Session) -> Result<(), Failure> {
    let items = all(session, &format!("/v1/{}", T::KIND), &[])?;
    print_all::<T>(session, &items)
}

/// The id of the one that is meant. Some names are unique only within an environment, or not at all.
pub(super) fn id_of<T: Resource>(session: &Session, which: &Which) -> Result<u64, Failure> {
    let name = match which {
        Which::Id(id) => return Ok(*id),
        Which::Name(name) => name,
    };
    let path = format!("/v1/{}", T::KIND);
    let mut items = all(session, &path, &[("name", name)])?;
    if items.is_empty() {
        // Where names are not unique, the server does not look them up.
        items = all(session, &path, &[])?;
    }
    let found = items.iter().filter(|one| one["name"] == **name);
    let ids: Vec<u64> = found.filter_map(|one| one["id"].as_u64()).collect();
    match ids.as_slice() {
        [] => Err(Failure::Work(format!("there is no {} '{name}'; list those there are", T::NOUN))),
        [id] => Ok(*id),
        ids => Err(Failure::Work(format!(
            "there are {} {}s called '{name}'; name one by its id: {}",
            ids.len(),
            T::NOUN,
            joined(ids)
        ))),
    }
}

/// The one that is meant, as the API has it.
pub(super) fn find<T: Resource>(session: &Session, which: &Which) -> Result<Value, Failure> {
    let id = id_of::<T>(session, which)?;
    Ok(session.get(&path_of::<T>(id))?)
}

/// Show one.
pub(super) fn show<T: Resource + Row>(session: &Session, which: &Which) -> Result<(), Failure> {
    print_it::<T>(session, &find::<T>(session, which)?)
}

/// What a command line asks for, as a request's body: the server's own defaults hold for the rest.
pub(super) fn body(args: &impl Serialize) -> Result<Map<String, Value>, Failure> {
    match serde_json::to_value(args) {
        Ok(Value::Object(fields)) => {
            Ok(fields.into_iter().filter(|(_, value)| !value.is_null()).collect())
        }
        other => Err(Failure::Work(format!("the request cannot be written as JSON: {other:?}"))),
    }
}

/// Make one of a kind.
pub(super) fn create<T: Resource>(
    session: &Session,
    body: Map<String, Value>,
) -> Result<Value, Failure> {
    session.create(&format!("/v1/{}", T::KIND), &Value::Object(body))
}

/// Make one of a kind, and print it.
pub(super) fn create_shown<T: Resource + Row>(
    session: &Session,
    body: Map<String, Value>,
) -> Result<(), Failure> {
    print_it::<T>(session, &create::<T>(session, body)?)
}

/// What of a kind is meant, for a message.
pub(super) fn called<T: Resource>(which: &Which) -> String {
    match which {
        Which::Id(id) => format!("{} {id}", T::NOUN),
        Which::Name(name) => format!("{} '{name}'", T::NOUN),
    }
}

/// Delete one.
pub(super) fn delete<T: Resource>(session: &Session, which: &Which) -> Result<(), Failure> {
    let id = id_of::<T>(session, which)?;
    session.client.delete::<Value>(&path_of::<T>(id))?;
    print_deleted(session, &called::<T>(which), true)
}

/// Say that it is gone, or going. As JSON there is nothing to say.
pub(super) fn print_deleted(session: &Session, what: &str, gone: bool) -> Result<(), Failure> {
    let now = if gone { "is deleted" } else { "is being deleted" };
    if session.json { Ok(()) } else { print(format!("{what} {now}")) }
}

/// What is done to something whose work goes on after the answer.
pub(super) struct Act {
    pub(super) method: Method,
    /// What follows its path.
    pub(super) path: &'static str,
}

/// Do something to one; answers with its id.
pub(super) fn act<T: Resource>(
    session: &Session,
    which: &Which,
    act: &Act,
) -> Result<u64, Failure> {
    let id = id_of::<T>(session, which)?;
    let path = format!("{}{}", path_of::<T>(id), act.path);
    session.client.call(act.method.clone(), &path).send::<Value>()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_an_id_and_all_else_is_a_name() {
        for (text, id) in [("12", Some(12)), ("012x", None), ("-1", None), ("w1", None)] {
            let Ok(which) = text.parse();
            assert_eq!(matches!(which, Which::Id(_)), id.is_some(), "{text}");
        }
    }
}

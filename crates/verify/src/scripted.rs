//! A machine for tests whose answers are written down beforehand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{Host, HostError, Job, Output};

/// Answers each command by the first line of its script whose pattern the command contains.
pub(crate) struct Scripted {
    name: String,
    answers: Vec<(String, Output)>,
    endless: Vec<String>,
    commands: Mutex<Vec<String>>,
    stopped: AtomicUsize,
}

impl Scripted {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            answers: Vec::new(),
            endless: Vec::new(),
            commands: Mutex::new(Vec::new()),
            stopped: AtomicUsize::new(0),
        }
    }

    pub(crate) fn answer(mut self, pattern: &str, status: i32, stdout: &str, stderr: &str) -> Self {
        let output = Output { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() };
        self.answers.push((pattern.to_owned(), output));
        self
    }

    /// A command that, started, goes on until it is stopped.
    pub(crate) fn endless(mut self, pattern: &str) -> Self {
        self.endless.push(pattern.to_owned());
        self
    }

    pub(crate) fn commands(&self) -> Vec<String> {
        self.commands.lock().expect("no test panics while it holds this").clone()
    }

    pub(crate) fn stopped(&self) -> usize {
        self.stopped.load(Ordering::SeqCst)
    }

    fn find(&self, command: &str) -> Result<Output, HostError> {
        self.commands.lock().expect("no test panics while it holds this").push(command.to_owned());
        let answer = self.answers.iter().find(|(pattern, _)| command.contains(pattern.as_str()));
        answer.map(|(_, output)| output.clone()).ok_or_else(|| HostError::Unreachable {
            host: self.name.clone(),
            why: format!("the script has no answer to: {command}"),
        })
    }
}

impl Host for Scripted {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, command: &str, within: Duration) -> Result<Output, HostError> {
        if self.endless.iter().any(|pattern| command.contains(pattern.as_str())) {
            let (host, command) = (self.name.clone(), command.to_owned());
            return Err(HostError::Deadline { host, command, after: within });
        }
        self.find(command)
    }

    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError> {
        let endless = self.endless.iter().any(|pattern| command.contains(pattern.as_str()));
        let ended = if endless { None } else { Some(self.find(command)?) };
        Ok(Box::new(ScriptedJob { host: self, ended }))
    }
}

struct ScriptedJob<'a> {
    host: &'a Scripted,
    ended: Option<Output>,
}

impl Job for ScriptedJob<'_> {
    fn poll(&mut self) -> Result<Option<Output>, HostError> {
        Ok(self.ended.clone())
    }

    fn stop(&mut self) -> Result<Output, HostError> {
        if self.ended.is_none() {
            self.host.stopped.fetch_add(1, Ordering::SeqCst);
        }
        Ok(self.ended.get_or_insert(Output { status: 137, ..Output::default() }).clone())
    }
}

impl Drop for ScriptedJob<'_> {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

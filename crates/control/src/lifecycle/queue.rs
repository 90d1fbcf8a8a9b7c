//! What waits to be seen to, each once. Hosts and VMs take turns: when thousands of hosts are lost or come
//! back at once, as after a restart of their server, a tenant's VM does not wait for all of them.

use std::collections::{HashSet, VecDeque};

use super::Item;

/// Those that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Queue {
    hosts: Kind,
    others: Kind,
    /// Whether it is a host's turn.
    is_hosts_turn: bool,
}

#[derive(Default)]
struct Kind {
    order: VecDeque<Item>,
    waiting: HashSet<Item>,
}

impl Kind {
    /// The first that nobody is at; those somebody is at keep their place.
    fn take(&mut self, busy: &HashSet<Item>) -> Option<Item> {
        let at = self.order.iter().position(|item| !busy.contains(item))?;
        let item = self.order.remove(at)?;
        self.waiting.remove(&item);
        Some(item)
    }
}

impl Queue {
    /// One more, unless it waits already.
    pub(super) fn push(&mut self, item: Item) {
        let kind = if matches!(item, Item::Host(_)) { &mut self.hosts } else { &mut self.others };
        if kind.waiting.insert(item.clone()) {
            kind.order.push_back(item);
        }
    }

    /// The next that nobody is at.
    pub(super) fn take(&mut self, busy: &HashSet<Item>) -> Option<Item> {
        self.is_hosts_turn = !self.is_hosts_turn;
        let (first, second) = if self.is_hosts_turn {
            (&mut self.hosts, &mut self.others)
        } else {
            (&mut self.others, &mut self.hosts)
        };
        first.take(busy).or_else(|| second.take(busy))
    }
}

impl Extend<Item> for Queue {
    fn extend<T: IntoIterator<Item = Item>>(&mut self, items: T) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::HostName;

    fn host(n: usize) -> Item {
        Item::Host(HostName::new(&format!("h{n}")).expect("a name"))
    }

    #[test]
    fn a_vm_does_not_wait_for_all_hosts_and_a_host_not_for_all_vms() {
        let mut queue = Queue::default();
        queue.extend((0..1000).map(host));
        queue.push(Item::Vm(1));
        let nobody = HashSet::new();
        let first: Vec<Item> = (0..2).filter_map(|_| queue.take(&nobody)).collect();
        assert!(first.contains(&Item::Vm(1)) && first.contains(&host(0)), "{first:?}");
        queue.extend((0..1000).map(Item::Vm));
        let next: Vec<Item> = (0..4).filter_map(|_| queue.take(&nobody)).collect();
        assert!(next.contains(&host(1)) && next.contains(&host(2)), "{next:?}");
    }

    #[test]
    fn each_waits_once_and_not_while_somebody_is_at_it() {
        let mut queue = Queue::default();
        queue.extend([Item::Vm(1), Item::Vm(2), Item::Vm(1)]);
        let busy = HashSet::from([Item::Vm(1)]);
        assert_eq!(queue.take(&busy), Some(Item::Vm(2)));
        assert_eq!(queue.take(&busy), None);
        assert_eq!(queue.take(&HashSet::new()), Some(Item::Vm(1)));
        assert_eq!(queue.take(&HashSet::new()), None);
    }
}

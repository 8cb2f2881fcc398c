//! Broadcast topics that exist only while they have listeners.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::broadcast::{Receiver, Sender, channel};

pub(super) struct Topics<K, V> {
    senders: Mutex<HashMap<K, Sender<V>>>,
}

impl<K, V> Default for Topics<K, V> {
    fn default() -> Self {
        Self { senders: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Topics<K, V> {
    /// Sends to the listeners of a topic. Without any, the value is not created.
    pub(super) fn send(&self, topic: &K, value: impl FnOnce() -> V) {
        if let Some(sender) = self.senders.lock().get(topic) {
            // Fails only if there is no receiver.
            sender.send(value()).ok();
        }
    }

    /// Subscribes from now on. At most `buffer` values are buffered.
    pub(super) fn subscribe(topics: &Arc<Self>, topic: K, buffer: usize) -> Listener<K, V> {
        let mut senders = topics.senders.lock();
        let receiver = senders.entry(topic.clone()).or_insert_with(|| channel(buffer).0).subscribe();
        Listener { topics: Arc::clone(topics), topic, receiver: Some(receiver) }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.senders.lock().len()
    }
}

pub(super) struct Listener<K: Clone + Eq + Hash, V: Clone> {
    topics: Arc<Topics<K, V>>,
    topic: K,
    /// Absent once the listener has ended.
    receiver: Option<Receiver<V>>,
}

impl<K: Clone + Eq + Hash, V: Clone> Listener<K, V> {
    /// The next value. A listener that lagged has missed values, so it ends instead of skipping them silently.
    pub(super) async fn next(&mut self) -> Option<V> {
        match self.receiver.as_mut()?.recv().await {
            Ok(value) => Some(value),
            Err(_) => {
                self.end();
                None
            }
        }
    }

    fn end(&mut self) {
        let mut senders = self.topics.senders.lock();
        // Drop under the lock, so that no subscriber is added between the count and the removal.
        self.receiver = None;
        if senders.get(&self.topic).is_some_and(|sender| sender.receiver_count() == 0) {
            senders.remove(&self.topic);
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Drop for Listener<K, V> {
    fn drop(&mut self) {
        if self.receiver.is_some() {
            self.end();
        }
    }
}

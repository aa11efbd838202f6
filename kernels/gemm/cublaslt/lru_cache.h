// LruCache: a map of bounded size that drops the entry that was used least recently. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

namespace quantgate {

template <typename Value>
class LruCache {
 public:
  /// Holds at most `entries_max` >= 1 values.
  explicit LruCache(size_t entries_max) : entries_max_(entries_max) {}

  /// The value of a key; null where there is none. Valid until the next Insert.
  const Value* Find(const std::string& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  /// `key` must not be in the cache.
  const Value& Insert(std::string key, Value value) {
    if (places_.size() == entries_max_) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, std::move(value));
    places_.emplace(std::move(key), entries_.begin());
    return entries_.front().second;
  }

  size_t size() const { return places_.size(); }

 private:
  using Entries = std::list<std::pair<std::string, Value>>;  // The most recently used first.
  const size_t entries_max_;
  Entries entries_;
  std::unordered_map<std::string, typename Entries::iterator> places_;
};

}  // namespace quantgate

#include "engine/core/prefix_cache.h"

#include <algorithm>

#include "kernels/select/placement.h"

namespace weft {
namespace {

void Erase(std::unordered_multimap<uint64_t, int32_t>* index, uint64_t key, int32_t page) {
  auto [it, end] = index->equal_range(key);
  while (it != end && it->second != page) ++it;
  if (it != end) index->erase(it);
}

int32_t Agreeing(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto n = static_cast<int64_t>(std::min(a.size(), b.size()));
  return static_cast<int32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

}  // namespace

uint64_t PrefixCache::DefaultHash(uint64_t before, const std::vector<int32_t>& tokens) {
  uint64_t hash = SplitMix64(before + tokens.size());
  for (int32_t token : tokens) hash = SplitMix64(hash ^ static_cast<uint32_t>(token));
  return hash;
}

uint64_t PrefixCache::Before(const std::string& root, int32_t parent) const {
  return parent == 0 ? std::hash<std::string>()(root) : nodes_.at(parent).hash;
}

bool PrefixCache::Follows(const Node& node, const std::string& root, int32_t parent) const {
  return node.parent == parent && (parent != 0 || node.root == root);
}

int32_t PrefixCache::Find(const std::string& root, int32_t parent,
                          const std::vector<int32_t>& tokens) const {
  const auto [begin, end] = by_hash_.equal_range(hash_(Before(root, parent), tokens));
  for (auto it = begin; it != end; ++it) {
    const Node& node = nodes_.at(it->second);
    // The hash only narrows the search; equal chains hold equal tokens.
    if (!node.hidden && Follows(node, root, parent) && node.tokens == tokens) return it->second;
  }
  return 0;
}

PrefixCache::Part PrefixCache::FindPart(const std::string& root, int32_t parent,
                                        const std::vector<int32_t>& tokens) {
  Part best;
  const auto [begin, end] = by_before_.equal_range(Before(root, parent));
  for (auto it = begin; it != end; ++it) {
    const Node& node = nodes_.at(it->second);
    if (node.hidden || !Follows(node, root, parent)) continue;
    const int32_t agreeing = Agreeing(node.tokens, tokens);
    if (agreeing > best.tokens) best = {it->second, agreeing};
  }
  if (best.page != 0) Touch(best.page);
  return best;
}

PrefixCache::Node& PrefixCache::Add(const std::string& root, int32_t parent,
                                    std::vector<int32_t> tokens, int32_t page) {
  Node& node = nodes_[page];
  node.parent = parent;
  node.before = Before(root, parent);
  node.hash = hash_(node.before, tokens);
  node.tokens = std::move(tokens);
  if (parent == 0) node.root = root;
  by_before_.emplace(node.before, page);
  return node;
}

void PrefixCache::Insert(const std::string& root, int32_t parent, std::vector<int32_t> tokens,
                         int32_t page) {
  Node& node = Add(root, parent, std::move(tokens), page);
  node.users = 1;
  by_hash_.emplace(node.hash, page);
}

bool PrefixCache::InsertPart(const std::string& root, int32_t parent, std::vector<int32_t> tokens,
                             int32_t page) {
  if (FindPart(root, parent, tokens).tokens == static_cast<int32_t>(tokens.size())) return false;
  Node& node = Add(root, parent, std::move(tokens), page);
  node.part = true;
  node.idle = idle_.insert(idle_.end(), page);
  return true;
}

std::vector<int32_t> PrefixCache::TakeParts(const std::string& root, int32_t parent,
                                            const std::vector<int32_t>& tokens) {
  std::vector<int32_t> taken;
  const auto [begin, end] = by_before_.equal_range(Before(root, parent));
  for (auto it = begin; it != end; ++it) {
    const Node& node = nodes_.at(it->second);
    if (node.part && Follows(node, root, parent) &&
        Agreeing(node.tokens, tokens) == static_cast<int32_t>(node.tokens.size())) {
      taken.push_back(it->second);
    }
  }
  for (int32_t page : taken) Remove(page);
  return taken;
}

void PrefixCache::Use(int32_t page) {
  Node& node = nodes_.at(page);
  if (node.users++ == 0) idle_.erase(node.idle);
}

void PrefixCache::Hide(int32_t page) { nodes_.at(page).hidden = true; }

void PrefixCache::Drop(int32_t page) {
  Node& node = nodes_.at(page);
  if (--node.users == 0) node.idle = idle_.insert(idle_.end(), page);
}

void PrefixCache::Touch(int32_t page) {
  const Node& node = nodes_.at(page);
  if (node.users == 0) idle_.splice(idle_.end(), idle_, node.idle);
}

int32_t PrefixCache::Evict() {
  if (idle_.empty()) return 0;
  const int32_t page = idle_.front();
  Remove(page);
  return page;
}

void PrefixCache::Remove(int32_t page) {
  const Node& node = nodes_.at(page);
  Erase(&by_before_, node.before, page);
  if (!node.part) Erase(&by_hash_, node.hash, page);
  idle_.erase(node.idle);
  nodes_.erase(page);
}

}  // namespace weft

// Which pages hold which tokens: the pages of running and ended sequences as a tree, so that a
// later one with the same beginning need not compute it again. A page's keys and latents depend on
// all tokens before it and on how the sequence selects; the latter is the chain's root, a string.
// Knows page ids alone; BlockManager owns the pages.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft {

class PrefixCache {
 public:
  // Of a chain: what came before, and the next tokens. Need not be free of collisions.
  using Hash = std::function<uint64_t(uint64_t before, const std::vector<int32_t>& tokens)>;
  static uint64_t DefaultHash(uint64_t before, const std::vector<int32_t>& tokens);

  struct Part {
    int32_t page = 0;    // 0: none
    int32_t tokens = 0;  // its first ones that agree
  };

  explicit PrefixCache(Hash hash = DefaultHash) : hash_(std::move(hash)) {}

  // In all of these `parent` is the page that a page follows in its chain, 0 for a chain's first.
  // The page that holds exactly these tokens; 0: none.
  int32_t Find(const std::string& root, int32_t parent, const std::vector<int32_t>& tokens) const;
  // The page that begins with most of these tokens, to be copied; it counts as used now.
  Part FindPart(const std::string& root, int32_t parent, const std::vector<int32_t>& tokens);

  // A page that its sequence filled and goes on using.
  void Insert(const std::string& root, int32_t parent, std::vector<int32_t> tokens, int32_t page);
  // A page that its sequence filled in part before it left. False: a page that says as much is
  // known, and this one can be given out again.
  bool InsertPart(const std::string& root, int32_t parent, std::vector<int32_t> tokens,
                  int32_t page);
  // Takes out parts that say no more than the first of these tokens; their pages are free.
  std::vector<int32_t> TakeParts(const std::string& root, int32_t parent,
                                 const std::vector<int32_t>& tokens);

  void Use(int32_t page);   // one sequence more
  void Hide(int32_t page);  // never found again; it leaves as others do
  void Drop(int32_t page);  // one less. Later pages of a chain first: they are evicted first.

  int64_t idle() const { return static_cast<int64_t>(idle_.size()); }  // pages nobody uses
  int32_t Evict();  // the idle page that was used longest ago leaves; 0: none is idle

 private:
  struct Node {
    int32_t parent = 0;
    uint64_t before = 0;  // hash of the chain up to this page, not included
    uint64_t hash = 0;    // included
    std::vector<int32_t> tokens;
    std::string root;   // of a chain's first page; implied by the parent elsewhere
    bool part = false;  // only ever copied
    bool hidden = false;
    int32_t users = 0;
    std::list<int32_t>::iterator idle;  // while users == 0
  };
  using Index = std::unordered_multimap<uint64_t, int32_t>;

  uint64_t Before(const std::string& root, int32_t parent) const;
  bool Follows(const Node& node, const std::string& root, int32_t parent) const;
  Node& Add(const std::string& root, int32_t parent, std::vector<int32_t> tokens, int32_t page);
  void Touch(int32_t page);
  void Remove(int32_t page);

  Hash hash_;
  std::unordered_map<int32_t, Node> nodes_;  // by page
  Index by_hash_;                            // whole pages by `hash`
  Index by_before_;                          // all pages by `before`
  std::list<int32_t> idle_;                  // least recently used first
};

}  // namespace weft

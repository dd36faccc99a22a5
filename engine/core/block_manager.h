// The only block table: which pages a sequence has. A page stands for P slots on every rank, in
// the latent and in the index cache alike, so G*P consecutive positions; they are taken and given
// together. Every page but page 0 is free, cached (nobody uses it, but its contents may be of use
// again; given out when no free one is left) or used by one sequence or, read-only, by several.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/prefix_cache.h"
#include "engine/core/sequence.h"
#include "engine/plan/step_plan.h"

namespace weft {

class BlockManager {
 public:
  // Page 0 is never given out: padding rows of a plan may write there. Without `reuse` nothing is
  // cached.
  BlockManager(int64_t pages, int32_t page_tokens, int32_t ranks, bool reuse = true,
               PrefixCache::Hash hash = PrefixCache::DefaultHash);

  int64_t positions_per_page() const { return positions_per_page_; }
  int64_t total() const { return total_; }  // pages that can be given out
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached() const { return prefixes_.idle(); }
  int64_t PagesFor(int64_t positions) const {
    return (positions + positions_per_page_ - 1) / positions_per_page_;
  }

  // Skips what others have computed: takes over whole pages, raising sequence.cached, up to
  // `limit` positions. Asked for again later, it finds what was computed meanwhile.
  void Reuse(Sequence* sequence, int32_t limit);
  // The same inside the page that comes next, of which the sequence has its own; the copy must be
  // made before anything of a next step is written.
  void ReusePart(Sequence* sequence, int32_t limit, std::vector<PageCopy>* copies);

  // Lengthens the block table so that `positions` positions fit. False, and no change, when too few
  // pages are free or cached.
  bool Grow(Sequence* sequence, int64_t positions);
  // Lets others find what the sequence has in the cache; after each step.
  void Publish(Sequence* sequence);
  // What the sequence computed or read is no numbers: nobody finds it again, and the sequence may
  // only be released.
  void Spoil(Sequence* sequence);
  void Release(Sequence* sequence);

 private:
  std::vector<int32_t> TokensOf(const Sequence& sequence, int64_t page, int64_t count) const;
  PrefixCache::Part NextPart(const Sequence& sequence, int32_t limit);
  void Free(int32_t page) { free_.push_back(page); }
  void ReleaseLast(Sequence* sequence);

  int64_t positions_per_page_;
  int64_t total_;
  bool reuse_;
  std::vector<int32_t> free_;  // taken from the back
  PrefixCache prefixes_;
};

}  // namespace weft

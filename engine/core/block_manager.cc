#include "engine/core/block_manager.h"

#include <algorithm>

namespace weft {
namespace {

// The page that the sequence's next page follows in its chain.
int32_t Parent(const Sequence& sequence) {
  return sequence.published == 0 ? 0 : sequence.pages[static_cast<size_t>(sequence.published - 1)];
}

}  // namespace

BlockManager::BlockManager(int64_t pages, int32_t page_tokens, int32_t ranks, bool reuse,
                           PrefixCache::Hash hash)
    : positions_per_page_(int64_t{page_tokens} * ranks),
      total_(pages - 1),
      reuse_(reuse),
      prefixes_(std::move(hash)) {
  // Lowest ids end up at the back, so that a short run touches little memory.
  for (int64_t id = pages - 1; id >= 1; --id) free_.push_back(static_cast<int32_t>(id));
}

std::vector<int32_t> BlockManager::TokensOf(const Sequence& sequence, int64_t page,
                                            int64_t count) const {
  std::vector<int32_t> tokens(static_cast<size_t>(std::max<int64_t>(count, 0)));
  auto position = static_cast<int32_t>(page * positions_per_page_);
  for (int32_t& token : tokens) token = sequence.TokenAt(position++);
  return tokens;
}

PrefixCache::Part BlockManager::NextPart(const Sequence& sequence, int32_t limit) {
  const int64_t begin = sequence.published * positions_per_page_;
  return prefixes_.FindPart(
      sequence.prefix_root, Parent(sequence),
      TokensOf(sequence, sequence.published, std::min(positions_per_page_, limit - begin)));
}

void BlockManager::Reuse(Sequence* sequence, int32_t limit) {
  if (!reuse_) return;
  while ((sequence->published + 1) * positions_per_page_ <= limit) {
    const int32_t page =
        prefixes_.Find(sequence->prefix_root, Parent(*sequence),
                       TokensOf(*sequence, sequence->published, positions_per_page_));
    if (page == 0) break;
    prefixes_.Use(page);
    const auto at = static_cast<size_t>(sequence->published++);
    if (at < sequence->pages.size()) {
      Free(sequence->pages[at]);
      sequence->pages[at] = page;
    } else {
      sequence->pages.push_back(page);
    }
    sequence->cached = static_cast<int32_t>(sequence->published * positions_per_page_);
  }
  // What ReusePart is going to copy must not be the first to make room for the copy.
  NextPart(*sequence, limit);
}

void BlockManager::ReusePart(Sequence* sequence, int32_t limit, std::vector<PageCopy>* copies) {
  if (!reuse_ || limit <= sequence->cached) return;
  const PrefixCache::Part part = NextPart(*sequence, limit);
  const int64_t end = sequence->published * positions_per_page_ + part.tokens;
  if (end <= sequence->cached) return;
  copies->push_back({part.page, sequence->pages[static_cast<size_t>(sequence->published)]});
  sequence->cached = static_cast<int32_t>(end);
}

bool BlockManager::Grow(Sequence* sequence, int64_t positions) {
  const int64_t more = PagesFor(positions) - static_cast<int64_t>(sequence->pages.size());
  if (more > free() + cached()) return false;
  for (int64_t i = 0; i < more; ++i) {
    if (free_.empty()) Free(prefixes_.Evict());
    sequence->pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void BlockManager::Publish(Sequence* sequence) {
  if (!reuse_) return;
  const std::string& root = sequence->prefix_root;
  for (; (sequence->published + 1) * positions_per_page_ <= sequence->cached;
       ++sequence->published) {
    int32_t& page = sequence->pages[static_cast<size_t>(sequence->published)];
    const int32_t parent = Parent(*sequence);
    std::vector<int32_t> tokens = TokensOf(*sequence, sequence->published, positions_per_page_);
    // Of two that computed the same at the same time, one page is enough.
    if (const int32_t known = prefixes_.Find(root, parent, tokens); known != 0) {
      prefixes_.Use(known);
      Free(page);
      page = known;
      continue;
    }
    for (int32_t less : prefixes_.TakeParts(root, parent, tokens)) Free(less);
    prefixes_.Insert(root, parent, std::move(tokens), page);
  }
}

// What the last page holds stays of use when it is a beginning of one.
void BlockManager::ReleaseLast(Sequence* sequence) {
  const int64_t count = sequence->cached - sequence->published * positions_per_page_;
  if (!reuse_ || count <= 0) return;
  const std::string& root = sequence->prefix_root;
  const int32_t parent = Parent(*sequence);
  int32_t& page = sequence->pages[static_cast<size_t>(sequence->published)];
  std::vector<int32_t> tokens = TokensOf(*sequence, sequence->published, count);
  for (int32_t less : prefixes_.TakeParts(root, parent, tokens)) Free(less);
  if (prefixes_.InsertPart(root, parent, std::move(tokens), page)) page = 0;
}

void BlockManager::Spoil(Sequence* sequence) {
  for (int64_t i = 0; i < sequence->published; ++i) {
    prefixes_.Hide(sequence->pages[static_cast<size_t>(i)]);
  }
  sequence->cached = 0;  // nothing more is published
}

void BlockManager::Release(Sequence* sequence) {
  Publish(sequence);
  ReleaseLast(sequence);
  std::vector<int32_t>& pages = sequence->pages;
  while (static_cast<int64_t>(pages.size()) > sequence->published) {
    if (pages.back() != 0) Free(pages.back());
    pages.pop_back();
  }
  for (; !pages.empty(); pages.pop_back()) prefixes_.Drop(pages.back());
  sequence->published = 0;
}

}  // namespace weft

// Operations on the block table, read off the input, against a memory that says what is in every
// page and a list of who has which: no page belongs to two that write it, none gets lost, and what
// is reused holds the sequence's own tokens.
#include <algorithm>
#include <memory>
#include <vector>

#include "engine/core/block_manager.h"
#include "tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

uint64_t Collide(uint64_t, const std::vector<int32_t>&) { return 7; }

class Model {
 public:
  explicit Model(Choices* in)
      : in_(*in),
        ranks_(1 + in->Below(3)),
        page_tokens_(1 + in->Below(3)),
        pages_(2 + in->Below(20)),
        blocks_(pages_, page_tokens_, ranks_, in->Below(4) != 0,
                in->Below(2) ? PrefixCache::Hash(Collide) : PrefixCache::DefaultHash),
        memory_(static_cast<size_t>(pages_ * PerPage()), -1) {}

  void Run() {
    while (!in_.empty()) {
      Act();
      Check();
    }
    for (const auto& sequence : live_) blocks_.Release(sequence.get());
    live_.clear();
    Check();
    Sequence all;  // every page can be had again, by one sequence alone
    Require(!blocks_.Grow(&all, (blocks_.total() + 1) * PerPage()),
            "not more pages than there are");
    Require(blocks_.Grow(&all, blocks_.total() * PerPage()), "every page comes back");
    blocks_.Release(&all);
    Require(blocks_.free() == blocks_.total(), "all of them free again");
  }

 private:
  int32_t PerPage() const { return ranks_ * page_tokens_; }

  int32_t& At(const Sequence& sequence, int32_t position) {
    const int32_t page = sequence.pages[static_cast<size_t>(position / PerPage())];
    return memory_[static_cast<size_t>(page * PerPage() + position % PerPage())];
  }

  void Act() {
    const int32_t act = in_.Below(6);
    if (act == 0 || live_.empty()) return Begin();
    const auto at = static_cast<size_t>(in_.Below(static_cast<int32_t>(live_.size())));
    Sequence& sequence = *live_[at];
    if (act == 1) {
      blocks_.Release(&sequence);
      Require(sequence.pages.empty() && sequence.published == 0, "a release takes all pages");
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (act == 2) {
      Take(&sequence, sequence.total() - 1);
    } else if (sequence.cached < sequence.total()) {
      Compute(&sequence, 1 + in_.Below(sequence.total() - sequence.cached));
    } else {
      sequence.output.push_back(in_.Below(3));
      if (!blocks_.Grow(&sequence, sequence.total())) sequence.output.pop_back();
    }
  }

  void Begin() {
    if (live_.size() == 64) return;
    auto sequence = std::make_unique<Sequence>();
    for (int32_t i = 1 + in_.Below(40); i > 0; --i) {
      sequence->request.prompt.push_back(in_.Below(16) == 0);
    }
    sequence->prefix_root = std::string(1, in_.Below(4) == 0 ? 's' : 'r');
    const int32_t limit = sequence->total() - 1;
    blocks_.Reuse(sequence.get(), limit);
    const int64_t spare = blocks_.free() + blocks_.cached();
    if (!blocks_.Grow(sequence.get(), sequence->total())) {
      Require(blocks_.free() + blocks_.cached() == spare, "a refused growth changes nothing");
      blocks_.Release(sequence.get());
      return;
    }
    Take(sequence.get(), limit);
    live_.push_back(std::move(sequence));
  }

  void Take(Sequence* sequence, int32_t limit) {
    const int32_t before = sequence->cached;
    blocks_.Reuse(sequence, limit);
    std::vector<PageCopy> copies;
    blocks_.ReusePart(sequence, limit, &copies);
    Require(sequence->cached >= before && sequence->cached <= std::max(limit, before),
            "no more is taken over than allowed");
    for (const PageCopy& copy : copies) {
      std::copy_n(memory_.begin() + copy.from * PerPage(), PerPage(),
                  memory_.begin() + copy.to * PerPage());
    }
  }

  void Compute(Sequence* sequence, int32_t count) {
    for (int32_t i = 0; i < count; ++i, ++sequence->cached) {
      At(*sequence, sequence->cached) = sequence->TokenAt(sequence->cached);
    }
    blocks_.Publish(sequence);
  }

  void Check() {
    std::vector<int> writers(static_cast<size_t>(pages_)), readers(static_cast<size_t>(pages_));
    for (const auto& sequence : live_) {
      for (int32_t at = 0; at < sequence->cached; ++at) {
        Require(At(*sequence, at) == sequence->TokenAt(at), "a page holds its sequence's tokens");
      }
      for (size_t i = 0; i < sequence->pages.size(); ++i) {
        const int32_t page = sequence->pages[i];
        Require(page >= 1 && page < pages_, "page ids are in range, and not 0");
        const bool read_only = static_cast<int64_t>(i) < sequence->published;
        ++(read_only ? readers : writers)[static_cast<size_t>(page)];
      }
    }
    int64_t used = 0;
    for (size_t page = 0; page < writers.size(); ++page) {
      Require(writers[page] + (readers[page] > 0) <= 1, "nobody else has a page that one writes");
      used += writers[page] + readers[page] > 0;
    }
    Require(used + blocks_.free() + blocks_.cached() == blocks_.total(), "no page gets lost");
  }

  Choices& in_;
  const int32_t ranks_, page_tokens_, pages_;
  BlockManager blocks_;
  std::vector<int32_t> memory_;
  std::vector<std::unique_ptr<Sequence>> live_;
};

}  // namespace
}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Choices in(data, std::min<size_t>(size, 4096));
  weft::fuzz::Model(&in).Run();
  return 0;
}

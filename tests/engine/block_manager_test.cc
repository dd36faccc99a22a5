// Pages against a memory that says what is in them: whatever is reused must hold the sequence's own
// tokens, no page may be lost or owned twice, and a bad hash must cost time alone.
#include "engine/core/block_manager.h"

#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <set>

namespace weft::test {
namespace {

constexpr int32_t kPerPage = 6;  // P = 3, G = 2
constexpr int64_t kPages = 1 + 24;

uint64_t Collide(uint64_t, const std::vector<int32_t>&) { return 7; }
uint64_t CollideOften(uint64_t before, const std::vector<int32_t>& tokens) {
  return PrefixCache::DefaultHash(before, tokens) % 3;
}

struct Pages {
  explicit Pages(PrefixCache::Hash hash, int64_t pages = kPages)
      : blocks(pages, 3, 2, true, std::move(hash)), memory(static_cast<size_t>(pages * kPerPage)) {}

  int32_t& At(const Sequence& sequence, int32_t position) {
    const int32_t page = sequence.pages[static_cast<size_t>(position / kPerPage)];
    return memory[static_cast<size_t>(page * kPerPage + position % kPerPage)];
  }

  bool Begin(Sequence* sequence, int32_t limit) {
    blocks.Reuse(sequence, limit);
    if (!blocks.Grow(sequence, sequence->total())) {
      blocks.Release(sequence);
      sequence->cached = 0;
      return false;
    }
    More(sequence, limit);
    return true;
  }

  void More(Sequence* sequence, int32_t limit) {
    blocks.Reuse(sequence, limit);
    std::vector<PageCopy> copies;
    blocks.ReusePart(sequence, limit, &copies);
    for (const PageCopy& copy : copies) {
      std::copy_n(memory.begin() + copy.from * kPerPage, kPerPage,
                  memory.begin() + copy.to * kPerPage);
    }
  }

  void Compute(Sequence* sequence, int32_t count) {
    for (int32_t i = 0; i < count; ++i, ++sequence->cached) {
      At(*sequence, sequence->cached) = sequence->TokenAt(sequence->cached);
    }
    blocks.Publish(sequence);
  }

  void Check(const std::vector<std::unique_ptr<Sequence>>& live) {
    std::set<int32_t> used, owned;
    for (const auto& sequence : live) {
      for (int32_t at = 0; at < sequence->cached; ++at) {
        REQUIRE(At(*sequence, at) == sequence->TokenAt(at));
      }
      REQUIRE(sequence->published == sequence->cached / kPerPage);
      for (size_t i = 0; i < sequence->pages.size(); ++i) {
        const int32_t page = sequence->pages[i];
        REQUIRE((page >= 1 && page <= blocks.total()));
        used.insert(page);
        if (static_cast<int64_t>(i) >= sequence->published) REQUIRE(owned.insert(page).second);
      }
    }
    REQUIRE(static_cast<int64_t>(used.size()) + blocks.free() + blocks.cached() == blocks.total());
  }

  BlockManager blocks;
  std::vector<int32_t> memory;
};

std::unique_ptr<Sequence> Make(std::vector<int32_t> tokens, const std::string& root = "r") {
  auto sequence = std::make_unique<Sequence>();
  sequence->request.prompt = std::move(tokens);
  sequence->prefix_root = root;
  return sequence;
}

std::vector<int32_t> Count(int32_t from, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(from + i);
  return tokens;
}

}  // namespace

TEST_CASE("pages: a prefix is taken over token by token, and the last part copied") {
  const PrefixCache::Hash hash = GENERATE(PrefixCache::Hash(PrefixCache::DefaultHash), Collide);
  Pages pages(hash);
  auto first = Make(Count(0, 20));
  REQUIRE(pages.Begin(first.get(), 19));
  CHECK(first->cached == 0);
  pages.Compute(first.get(), 20);
  pages.blocks.Release(first.get());
  CHECK(pages.blocks.cached() == 4);
  CHECK(pages.blocks.free() == 20);
  const auto hit = [&](std::vector<int32_t> tokens, int32_t limit, const std::string& root = "r") {
    auto sequence = Make(std::move(tokens), root);
    REQUIRE(pages.Begin(sequence.get(), limit));
    const int32_t cached = sequence->cached;
    pages.blocks.Release(sequence.get());
    return cached;
  };
  for (int32_t same = 0; same <= 20; ++same) {
    CAPTURE(same);
    std::vector<int32_t> tokens = Count(0, same);
    tokens.resize(30, 99);
    CHECK(hit(tokens, 29) == same);
    CHECK(hit(Count(0, 30), same) == same);
  }
  CHECK(hit(Count(0, 30), 29, "another root") == 0);
  CHECK(hit(Count(6, 20), 19) == 0);  // the second page's tokens, at the beginning
}

TEST_CASE("pages: the ones used longest ago go first, a chain's end before its beginning") {
  Pages pages(PrefixCache::DefaultHash, 1 + 7);
  const auto run = [&](int32_t from, int32_t count) {
    auto sequence = Make(Count(from, count));
    REQUIRE(pages.Begin(sequence.get(), count - 1));
    const int32_t cached = sequence->cached;
    pages.Compute(sequence.get(), count - cached);
    pages.blocks.Release(sequence.get());
    return cached;
  };
  CHECK(run(0, 18) == 0);
  CHECK(run(100, 18) == 0);
  CHECK(run(0, 18) == 17);   // used again
  CHECK(run(200, 12) == 0);  // takes the free page and the second's last
  CHECK(run(0, 18) == 17);
  CHECK(run(100, 6) == 5);  // its beginning is still there
  CHECK(pages.blocks.free() + pages.blocks.cached() == 7);
}

TEST_CASE("pages: random sequences over few tokens keep every page accounted for") {
  const PrefixCache::Hash hash =
      GENERATE(PrefixCache::Hash(PrefixCache::DefaultHash), Collide, CollideOften);
  std::mt19937 random(11);
  const auto below = [&random](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  Pages pages(hash);
  std::vector<std::unique_ptr<Sequence>> live;
  int64_t reused = 0;
  for (int step = 0; step < 20000; ++step) {
    const int32_t act = below(8);
    if (act == 0 || live.empty()) {
      std::vector<int32_t> tokens;
      for (int32_t i = 1 + below(40); i > 0; --i) tokens.push_back(below(12) == 0);
      auto sequence = Make(std::move(tokens), below(6) == 0 ? "s" : "r");
      const int32_t limit = below(3) == 0 ? below(sequence->total()) : sequence->total() - 1;
      if (!pages.Begin(sequence.get(), limit)) continue;
      reused += sequence->cached;
      REQUIRE(sequence->cached <= limit);
      live.push_back(std::move(sequence));
    } else {
      const auto at = static_cast<size_t>(below(static_cast<int32_t>(live.size())));
      Sequence& sequence = *live[at];
      if (act == 1) {
        pages.blocks.Release(&sequence);
        live.erase(live.begin() + static_cast<int64_t>(at));
      } else if (act == 2) {
        pages.More(&sequence, sequence.total() - 1);
      } else if (sequence.cached < sequence.total()) {
        pages.Compute(&sequence, 1 + below(sequence.total() - sequence.cached));
      } else {
        sequence.output.push_back(below(12) == 0);
        if (!pages.blocks.Grow(&sequence, sequence.total())) sequence.output.pop_back();
      }
    }
    pages.Check(live);
  }
  CHECK(reused > 1000);
  for (const auto& sequence : live) pages.blocks.Release(sequence.get());
  live.clear();
  pages.Check(live);
}

}  // namespace weft::test

#include "engine/app/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace weft {
namespace {

constexpr int64_t kFloat = 4;

std::string Parts(const MemoryRequest& r) {
  return "weights " + BytesText(r.weights) + ", workspace " + BytesText(r.workspace) +
         " (steps of up to " + std::to_string(r.tokens_per_step) + " tokens), exchange " +
         BytesText(r.exchange) + (r.libraries > 0 ? ", libraries " + BytesText(r.libraries) : "");
}

int64_t Fixed(const MemoryRequest& r) { return r.weights + r.workspace + r.exchange + r.libraries; }

[[noreturn]] void Refuse(const MemoryRequest& r, int64_t cache, const std::string& advice) {
  throw std::invalid_argument("the engine does not fit into the " + BytesText(r.available) +
                              " that a rank may use of " + r.where + ": " + Parts(r) + ", cache " +
                              BytesText(cache) + ", together " + BytesText(Fixed(r) + cache) +
                              "; " + advice);
}

}  // namespace

std::string BytesText(int64_t bytes) {
  constexpr std::array<std::pair<const char*, int>, 3> kUnits = {
      {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}};
  char text[32];
  for (const auto& [name, shift] : kUnits) {
    const double value = static_cast<double>(bytes) / static_cast<double>(int64_t{1} << shift);
    if (value < 1 && shift > 10) continue;
    std::snprintf(text, sizeof(text), shift == 30 ? "%.2f %s" : "%.1f %s", value, name);
    break;
  }
  return text;
}

MemoryPlan WithPages(const MemoryRequest& r, int64_t pages) {
  MemoryPlan plan;
  plan.pages = pages;
  plan.cache = pages * r.page_bytes;
  plan.used = Fixed(r) + plan.cache;
  plan.left = r.available - plan.used;
  return plan;
}

MemoryPlan PlanMemory(const MemoryRequest& r) {
  if (r.kv_memory > 0) {
    const int64_t pages = r.kv_memory / r.page_bytes;
    if (pages < 2) {
      throw std::invalid_argument(
          "the cache memory of every rank (--kv-memory) must hold at least 2 pages of " +
          std::to_string(r.page_bytes) + " bytes; " + std::to_string(r.kv_memory) + " bytes hold " +
          std::to_string(pages));
    }
    if (Fixed(r) + pages * r.page_bytes > r.available) {
      Refuse(r, pages * r.page_bytes, "give less --kv-memory, or more ranks");
    }
    return WithPages(r, pages);
  }
  const int64_t room = r.available - Fixed(r);
  int64_t pages = 0;
  if (room > 0) {
    pages = static_cast<int64_t>(static_cast<double>(room) * r.share) / r.page_bytes;
  }
  if (r.most_pages > 0) pages = std::min(pages, r.most_pages);
  if (pages < 2)
    Refuse(r, 2 * r.page_bytes, "give more ranks, a smaller --max-step-tokens, or free memory");
  return WithPages(r, pages);
}

std::string Describe(const MemoryRequest& r, const MemoryPlan& plan) {
  std::string text = "memory of a rank, in " + r.where + ":";
  const auto line = [&text](const char* name, int64_t bytes, const std::string& note) {
    char head[64];
    std::snprintf(head, sizeof(head), "\n  %-10s %11s", name, BytesText(bytes).c_str());
    text += head + (note.empty() ? "" : "  " + note);
  };
  line("weights", r.weights, "");
  line("workspace", r.workspace, "steps of up to " + std::to_string(r.tokens_per_step) + " tokens");
  line("exchange", r.exchange, "");
  if (r.libraries > 0) line("libraries", r.libraries, "");
  const int64_t pages = plan.pages - 1, tokens = pages * r.page_tokens * r.ranks;
  line("cache", plan.cache,
       std::to_string(pages) + " pages of " + BytesText(r.page_bytes) + ", " +
           std::to_string(tokens) + " tokens over " + std::to_string(r.ranks) +
           " ranks; and page 0, which no token takes");
  line("left", plan.left, "of " + BytesText(r.available));
  return text;
}

int64_t StepBytes(const ModelConfig& c, int64_t tokens, int64_t context, int32_t max_topk,
                  int32_t ranks, int32_t workers) {
  const auto own = [ranks](int64_t whole) { return (whole + ranks - 1) / ranks; };
  const int64_t heads = own(c.heads), latent = c.kv_lora + c.qk_rope;
  const int64_t width = std::max(c.intermediate, c.shared_intermediate());
  const int64_t pairs = c.n_routed_experts > 0 ? c.experts_per_tok : 0;
  int64_t token = 3 * int64_t{c.hidden};                // residual, normed, block output
  token += c.q_lora + heads * (c.qk_nope + c.qk_rope);  // queries
  token += heads * (latent + c.kv_lora + 2);            // absorbed, attended, softmax state
  token += int64_t{c.heads} * c.v_head;                 // values of all heads
  token += own(c.hidden) + latent + c.index_dim;        // rows of the tokens that live here
  token += int64_t{c.index_heads} * (c.index_dim + 1);  // the indexer's queries
  token += 2 * own(width) + width;                      // gate, up, activation
  token += pairs * (2 * own(c.moe_intermediate) + c.moe_intermediate + c.hidden + own(c.hidden));
  token += c.n_routed_experts + own(c.hidden);  // router, shared output
  // Picks as items of two words, those of all ranks, and the union.
  token += int64_t{max_topk} * (ranks > 1 ? 2 + 3 * ranks : 4);
  const int64_t scores = own(context) * std::min<int64_t>(workers, tokens);
  return kFloat * (tokens * token + scores);
}

}  // namespace weft

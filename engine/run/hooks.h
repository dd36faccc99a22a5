// Test and study hooks: look at, or override, what a step selects. Every rank must be given the
// same overrides. Unset hooks cost nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace weft {

struct Where {
  int layer;
  int64_t sequence;
  int32_t position;  // of the query, global
};

struct Hooks {
  // Replaces the positions that attention reads (ascending); false leaves them as selected. Asked
  // only for queries with more than K visible tokens.
  std::function<bool(const Where&, std::vector<int32_t>* positions)> override_selection;
  // Replaces the chosen experts (ascending ids, as many as experts_per_tok).
  std::function<bool(const Where&, int32_t* ids)> override_router;
  // This rank's scores of its visible local slots, for queries that select.
  std::function<void(const Where&, const float* scores, int64_t visible)> on_scores;
  // What attention will read, for queries that select; with exchange `partial`, this rank's share.
  std::function<void(const Where&, const int32_t* positions, int32_t count)> on_selection;
  // Whether the certificate held, on rank 0, at the end of the step (not in exact or dense mode);
  // in certified mode, before the second round.
  std::function<void(const Where&, bool covered)> on_certificate;
  // What this rank's heads made of their lists, [tokens, own heads, c] after the softmax.
  std::function<void(int layer, const float* latent, int64_t tokens)> on_attention;
  std::function<void(const Where&, const int32_t* ids, int32_t count)> on_router;
  // Hidden states [tokens, hidden] of the step after a layer; layer -1: after the embedding.
  std::function<void(int layer, const float* hidden, int64_t tokens)> on_hidden;
  // This rank's slice of the logits of one query, ids vocab_begin onwards.
  std::function<void(const Where&, const float* logits, int32_t vocab_begin, int32_t count)>
      on_logits;
  // On every rank, when all of a step is computed; may use the ranks' communicator.
  std::function<void()> on_step_end;
};

}  // namespace weft

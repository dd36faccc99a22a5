#include "tests/engine/harness.h"

#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "engine/model/weights.h"

namespace weft::test {

Cluster::Cluster(const ClusterOptions& options)
    : options_(options), config_(LoadConfig(options.model)) {
  const CheckpointFolder folder(options.model);
  RunnerOptions run;
  run.placement = placement();
  const int64_t per_page = int64_t{options.page_tokens} * options.ranks;
  if (options_.pages == 0) options_.pages = (options.positions + per_page - 1) / per_page + 1;
  run.cache = {options.kv, options.index, options.page_tokens, options_.pages};
  run.max_sequences = options.max_sequences;
  run.exchange = options.exchange;
  run.exchange_bytes = options.exchange_bytes;
  run.graphs = options.graphs;
  run.partition = options.partition;
  run.audit = options.audit;
  run.deterministic = options.deterministic;
  run.see_loads = options.see_loads;
  comms_ = MakeThreadCommunicators(options.ranks);
  runners_.resize(comms_.size());
  for (int rank = 0; rank < options.ranks; ++rank) {
    pools_.push_back(std::make_unique<ThreadPool>(options.threads));
    hooks_.push_back(std::make_unique<Hooks>());
  }
  OnEach([&](size_t r) {
    const int rank = static_cast<int>(r);
    if (options.maker) {
      runners_[r] = options.maker({rank, config_, folder, run, comms_[r].get(), *hooks_[r]});
      return;
    }
    runners_[r] = std::make_unique<Runner>(
        config_, LoadWeights(config_, folder, rank, options.ranks, options.partition), run,
        comms_[r].get(), CpuOps(options.isa), pools_[r]->exec(), *hooks_[r]);
  });
}

Cluster::~Cluster() {
  OnEach([this](size_t rank) { runners_[rank].reset(); });
}

void Cluster::OnEach(const std::function<void(size_t rank)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](size_t rank) {
    try {
      body(rank);
    } catch (const std::exception& error) {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      if (comms_.size() > 1) comms_[rank]->Abort(error.what());
    }
  };
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < comms_.size(); ++rank) others.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : others) thread.join();
  if (first) std::rethrow_exception(first);
}

StepResult Cluster::RunStep(const StepPlan& plan) {
  StepResult result;
  OnEach([&](size_t rank) {
    StepResult own = runners_[rank]->Run(plan);
    if (rank == 0) result = std::move(own);
  });
  committed_ = plan.epoch;
  return result;
}

EventSink Outcome::Sink() {
  return [this](EngineEvent event) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      tokens.push_back(token->id);
      indices.push_back(token->output_index);
      if (token->score) {
        token_logprobs.push_back(token->score->logprob);
        token_top.push_back(token->score->top);
      }
    } else if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
      for (size_t i = 0; i < scores->logprobs.size(); ++i) {
        scored.push_back(scores->position + static_cast<int32_t>(i));
      }
      logprobs.insert(logprobs.end(), scores->logprobs.begin(), scores->logprobs.end());
      argmax.insert(argmax.end(), scores->argmax.begin(), scores->argmax.end());
      top.Append(scores->top);
    } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
      finished = *done;
    } else if (const auto* found = std::get_if<SelectedEvent>(&event)) {
      selected.push_back(*found);
    } else if (const auto* progress = std::get_if<PrefillEvent>(&event)) {
      prefill.push_back(*progress);
    } else {
      failed = std::get<FailedEvent>(event).status;
    }
  };
}

Driver::Driver(Cluster* cluster, const DriverOptions& options) {
  const ClusterOptions& c = cluster->options();
  SchedulerOptions scheduling;
  scheduling.max_step_tokens = options.chunk;
  scheduling.max_sequences = c.max_sequences;
  scheduling.ranks = c.ranks;
  scheduling.page_tokens = c.page_tokens;
  scheduling.pages = c.pages;
  scheduling.prefix_cache = options.prefix_cache;
  scheduling.max_step_ms = options.max_step_ms;
  EngineLimits limits;
  limits.vocab = cluster->config().vocab;
  limits.max_context = limits.max_index_topk = options.max_context;
  limits.layers = cluster->config().layers;
  limits.selecting_layers = cluster->config().layers;  // those of the tests all have an indexer
  SelectionDefaults defaults{SelectionMode::kExact, cluster->config().index_topk, 0.99,
                             MRule::kExactProbability};
  defaults.margin_auto = options.margin_auto;
  const uint64_t before = cluster->committed();
  engine_ = std::make_unique<Engine>(scheduling, limits, defaults, [=, this](const StepPlan& plan) {
    StepPlan moved = plan;
    moved.epoch += before;
    moved.predecessor += before;
    if (options.high_pages_first) {
      const auto move = [&c](int32_t& page) { page = static_cast<int32_t>(c.pages) - page; };
      for (int32_t& page : moved.pages) move(page);
      for (PageCopy& copy : moved.copies) {
        move(copy.from);
        move(copy.to);
      }
    }
    StepResult result = cluster->RunStep(moved);
    if (after_step) after_step(moved, result);
    return result;
  });
}

std::vector<Outcome> Driver::Run(const std::vector<EngineRequest>& requests) {
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    int64_t id;
    const Status status = engine_->Submit(requests[i], outcomes[i].Sink(), &id);
    if (!status.ok()) throw std::runtime_error("refused: " + status.message);
  }
  while (engine_->Step()) {
  }
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ended()) throw std::runtime_error("the engine ran dry before a request ended");
  }
  return outcomes;
}

SelectionPlan Exact(const Cluster& cluster) {
  return SelectionPlan::Make(SelectionMode::kExact, cluster.config().index_topk,
                             cluster.options().ranks, 1);
}

SelectionPlan Interleaved(const Cluster& cluster, int32_t m) {
  return {SelectionMode::kInterleaved, cluster.config().index_topk, m, 0.99};
}

SelectionPlan Certified(const Cluster& cluster, int32_t m) {
  return {SelectionMode::kCertified, cluster.config().index_topk, m, 0.99};
}

EngineRequest Ask(const std::vector<int32_t>& prompt, int32_t max_tokens,
                  const SelectionPlan& selection) {
  EngineRequest request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.selection = selection;
  return request;
}

StepPlan WholePrompt(const Cluster& cluster, const std::vector<int32_t>& ids,
                     const SelectionPlan& selection) {
  StepPlan plan;
  plan.predecessor = cluster.committed();
  plan.epoch = plan.predecessor + 1;
  plan.tokens = ids;
  PlanRow row;
  row.slot = 0;
  row.count = static_cast<int32_t>(ids.size());
  const int32_t per_page = cluster.options().page_tokens * cluster.options().ranks;
  row.pages_count = (row.count + per_page - 1) / per_page;
  for (int32_t page = 1; page <= row.pages_count; ++page) plan.pages.push_back(page);
  row.prefill = true;
  row.selection = selection;
  plan.rows.push_back(row);
  return plan;
}

LogitsTap::LogitsTap(Cluster* cluster) : cluster_(cluster) {
  const auto vocab = static_cast<size_t>(cluster->config().vocab);
  for (int rank = 0; rank < cluster->options().ranks; ++rank) {
    cluster->hooks(rank).on_logits = [this, vocab](const Where& where, const float* logits,
                                                   int32_t begin, int32_t count) {
      std::lock_guard lock(mutex_);
      std::vector<float>& row = rows_[{where.sequence, where.position}];
      row.resize(vocab);
      std::copy(logits, logits + count, row.begin() + begin);
    };
  }
}

LogitsTap::~LogitsTap() {
  for (int rank = 0; rank < cluster_->options().ranks; ++rank) {
    cluster_->hooks(rank).on_logits = nullptr;
  }
}

LogitsTap::Rows LogitsTap::Take() {
  std::lock_guard lock(mutex_);
  return std::exchange(rows_, {});
}

std::string BitsDiffer(const LogitsTap::Rows& got, const LogitsTap::Rows& want) {
  const auto at = [](const LogitsTap::Rows::key_type& key) {
    return "sequence " + std::to_string(key.first) + ", position " + std::to_string(key.second);
  };
  for (const auto& [key, row] : want) {
    const auto found = got.find(key);
    if (found == got.end()) return "no logits of " + at(key);
    if (std::memcmp(found->second.data(), row.data(), row.size() * sizeof(float)) != 0) {
      return "logits differ at " + at(key);
    }
  }
  return got.size() == want.size() ? "" : "logits of more queries than expected";
}

double Nmse(const float* got, const float* want, int64_t width) {
  double error = 0, power = 0;
  for (int64_t i = 0; i < width; ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    power += double{want[i]} * want[i];
  }
  return error / power;
}

}  // namespace weft::test

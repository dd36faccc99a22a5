#include "engine/app/options.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "engine/app/capture_options.h"
#include "engine/app/option_checks.h"
#include "engine/app/size_option.h"

namespace weft {
namespace {

const std::map<std::string, SelectionMode> kModes = {{"exact", SelectionMode::kExact},
                                                     {"interleaved", SelectionMode::kInterleaved},
                                                     {"certified", SelectionMode::kCertified},
                                                     {"dense", SelectionMode::kDense}};
const std::map<std::string, MRule> kRules = {{"exact", MRule::kExactProbability},
                                             {"formula", MRule::kFormula}};
const std::map<std::string, DType> kCacheTypes = {
    {"bf16", DType::kBF16}, {"fp32", DType::kF32}, {"fp8", DType::kF8E4M3}};
const std::map<std::string, Exchange> kExchanges = {{"rows", Exchange::kRows},
                                                    {"partial", Exchange::kPartial}};
const std::map<std::string, bool> kMargins = {{"auto", true}, {"off", false}};
const std::map<std::string, bool> kSwitch = {{"on", true}, {"off", false}};
const std::map<std::string, bool> kPartitions = {{"gather", false}, {"reduce", true}};
const std::map<std::string, ExpertSharing> kExperts = {{"auto", ExpertSharing::kAuto},
                                                       {"split", ExpertSharing::kSplit},
                                                       {"whole", ExpertSharing::kWhole}};
const std::map<std::string, Backend> kBackends = {
    {"auto", Backend::kAuto}, {"cpu", Backend::kCpu}, {"cuda", Backend::kCuda}};
const std::map<std::string, bool> kPlacements = {{"rotated", true}, {"round-robin", false}};

template <typename T>
CLI::Option* AddChoice(CLI::App& app, const std::string& name, T* value,
                       const std::map<std::string, T>& choices, const std::string& help) {
  std::string names, current;
  for (const auto& [key, choice] : choices) {
    names += (names.empty() ? "" : "|") + key;
    if (choice == *value) current = key;
  }
  const CLI::callback_t parse = [value, choices, names, name](const CLI::results_t& results) {
    const auto found = choices.find(results.back());
    if (found == choices.end()) {
      throw CLI::ValidationError(name,
                                 "must be one of " + names + ", got '" + results.back() + "'");
    }
    *value = found->second;
    return true;
  };
  return app.add_option(name, parse, help)->type_name(names)->default_str(current);
}

void AddModelOptions(CLI::App& app, EngineOptions* o) {
  app.add_option("--model", o->model, "Hugging Face folder of the model");
  app.add_option(
      "--check", o->check,
      "tell what this folder holds, what each rank would hold and what is wrong, and end");
  app.add_option("--check-ranks", o->check_ranks, "ranks that --check supposes")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--listen", o->listen, "HOST:PORT of the engine's gRPC door")
      ->check([](const std::string& text) {
        const size_t colon = text.rfind(':');
        char* end = nullptr;
        const long port = colon == std::string::npos || colon + 1 == text.size()
                              ? -1
                              : std::strtol(text.c_str() + colon + 1, &end, 10);
        return colon > 0 && port >= 0 && port <= 65535 && *end == 0
                   ? std::string()
                   : "must be HOST:PORT with a port from 0 to 65535, got " + text;
      })
      ->capture_default_str();
  app.add_option(
      "--script", o->script,
      "run the requests of this file, print the results, and end; one JSON object a line (- for "
      "standard input) with prompt_ids, and any of max_tokens, stop_ids, committed_ids, "
      "logprobs_from, prompt_logprobs, temperature, top_p, top_k, min_p, seed, repetition_penalty, "
      "frequency_penalty, presence_penalty, logit_bias, min_tokens, logprobs, cache_salt, "
      "priority, "
      "client_id, selection {mode, index_topk, coverage}, selected {layers, outputs}: tell what "
      "attention read for these output tokens");
}

void AddComputeOptions(CLI::App& app, EngineOptions* o) {
  AddChoice(app, "--partition", &o->reduce, kPartitions,
            "gather: weights by output features, the same bits for every number of ranks; reduce: "
            "in pairs, with one sum over the ranks a block");
  AddChoice(app, "--experts", &o->experts, kExperts,
            "with --partition reduce, each expert over all ranks or whole on one; auto: split "
            "while a slice is at least 128 wide");
  app.add_option("--threads", o->threads,
                 "compute threads per rank; 0: cores over ranks of the host")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--isa", o->isa, "CPU kernels; auto takes the best that all ranks have")
      ->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512"}))
      ->capture_default_str();
  AddChoice(
      app, "--backend", &o->backend, kBackends,
      "auto takes cuda when every rank has a Hopper GPU of its own, else cpu; rank 0 decides");
  app.add_option(
         "--device", o->devices,
         "GPUs of a host by the ranks on it, as 0,2; by default the first rank takes GPU 0, "
         "the next GPU 1")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("GPU,...")
      ->check(CLI::Range(0, 1023));
  AddChoice(app, "--share-device", &o->share_device, kSwitch,
            "let several ranks use one GPU, exchanging through the host: slow, for tests");
  AddChoice(app, "--peer-access", &o->peer_access, kSwitch,
            "where all ranks are GPUs of one host that reach each other: decode steps read caches "
            "and lists in each other's memory, instead of by collectives");
  AddChoice(app, "--deterministic", &o->deterministic, kSwitch,
            "on GPUs: a request gives the same tokens alone or in any batch, in any chunking and "
            "after a failure, as it always does on the CPU; products then run in fp32, which is "
            "slower, prompts most");
  app.add_option("--startup-timeout", o->startup_timeout, "seconds to wait for missing ranks")
      ->check(NumberIn(0, kMostSeconds, false))
      ->capture_default_str();
  app.add_option("--step-timeout", o->step_timeout,
                 "seconds a collective may take before the engine gives up")
      ->check(NumberIn(0, kMostSeconds, false))
      ->capture_default_str();
  app.add_option("--log-level", o->log_level, "log level")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
}

void AddSelectionOptions(CLI::App& app, EngineOptions* o) {
  AddChoice(app, "--selection", &o->selection, kModes, "selection of requests that ask for none");
  app.add_option("--index-topk", o->index_topk, "K, tokens selected per query; 0: the model's")
      ->check(CLI::Range(0, kGreatestTopK))
      ->capture_default_str();
  app.add_option("--max-index-topk", o->max_index_topk,
                 "greatest K a request may ask for; 0: the greater of the model's and --index-topk")
      ->check(CLI::Range(0, kGreatestTopK))
      ->capture_default_str();
  app.add_option(
         "--coverage", o->coverage,
         "gamma, wanted probability per query and layer that the first union holds the exact "
         "top-K; by default 0.99, and 0.99999 in certified mode")
      ->check(NumberIn(0, 1, false));
  AddChoice(app, "--m-rule", &o->m_rule, kRules, "how m follows from K, G and gamma");
  AddChoice(
      app, "--margin", &o->margin_auto, kMargins,
      "auto: new requests take for each layer the smallest m whose share of the loads seen so "
      "far reaches gamma, never above that of --m-rule, and only from 1000 pairs of a query "
      "and the layer on (2000, 4000, ...: the first of at least 1 / (1 - gamma)); loads are seen "
      "in certified mode "
      "with --exchange rows, and in exact mode; CPU backend alone");
  app.add_option("--audit", o->audit,
                 "share of queries that are also ranked exactly, to check certificates and recall")
      ->check(NumberIn(0, 1, true))
      ->capture_default_str();
  AddChoice(app, "--placement", &o->rotated, kPlacements, "how positions are spread over ranks");
  app.add_option("--block-size", o->block_size, "b, neighbouring tokens that stay on one rank")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

void AddMemoryOptions(CLI::App& app, EngineOptions* o) {
  AddChoice(app, "--kv-dtype", &o->kv_dtype, kCacheTypes, "type of cached latents");
  AddChoice(app, "--index-dtype", &o->index_dtype, kCacheTypes, "type of cached index keys");
  app.add_option("--page-tokens", o->page_tokens, "P, tokens of a cache page on one rank")
      ->check([](const std::string& text) {
        const int value = std::atoi(text.c_str());
        return value >= 16 && value <= 4096 && value % 16 == 0
                   ? std::string()
                   : "must be a multiple of 16 in [16, 4096], got " + text;
      })
      ->capture_default_str();
  AddSize(app, "--kv-memory", &o->kv_memory, 0,
          "cache memory per rank, as 512MB or 4GiB; 0: room for four longest contexts within 40 % "
          "of free memory");
  AddChoice(app, "--exchange", &o->exchange, kExchanges,
            "rows: latent rows go to the heads' owners; partial: queries go to the rows' owners");
  AddSize(app, "--exchange-memory", &o->exchange_memory, 1, "workspace of the exchange per rank");
}

void AddSchedulingOptions(CLI::App& app, EngineOptions* o) {
  app.add_option("--max-step-tokens,--chunk", o->max_step_tokens,
                 "most tokens of one step, prefill chunks and decode together")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--max-context", o->max_context,
                 "longest prompt and output together; 0: the model's")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-sequences", o->max_sequences, "sequences that run at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--max-waiting", o->max_waiting,
                 "requests that may wait for a place; one more gets RESOURCE_EXHAUSTED")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--max-waiting-per-client", o->max_waiting_per_client,
                 "the same of one client_id; 0: no limit of its own")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--max-step-ratio", o->max_step_ratio,
                 "while answers stream, prompts are read in chunks that keep a step within so many "
                 "times what the answers alone take, as predicted from measured steps, but at "
                 "least 2 tokens a step; 0: whole chunks")
      ->check(NumberIn(0, 1e6, true))
      ->capture_default_str();
  app.add_option("--max-step-ms", o->max_step_ms,
                 "the same as a time in ms, but prompts get as much time as the answers take in "
                 "any case; 0: no such limit")
      ->check(NumberIn(0, 1e6, true))
      ->capture_default_str();
  app.add_option("--priority-aging", o->priority_aging,
                 "seconds of waiting for a place, or for the next step, that count as one priority "
                 "more")
      ->check(NumberIn(1e-3, kMostSeconds, true))
      ->capture_default_str();
  AddChoice(app, "--prefix-cache", &o->prefix_cache, kSwitch,
            "keep what was computed, for later prompts that begin alike");
}

}  // namespace

bool ParseOptions(int argc, char** argv, EngineOptions* options, int* exit_code) {
  CLI::App app(
      "weft-engine: one rank of Weft's inference engine; start it with mpirun -n G.\n"
      "weft-server does that by itself.");
  app.set_version_flag("--version", std::string("weft-engine ") + WEFT_VERSION);
  app.option_defaults()->always_capture_default(false);
  AddModelOptions(app, options);
  AddComputeOptions(app, options);
  AddSelectionOptions(app, options);
  AddMemoryOptions(app, options);
  AddSchedulingOptions(app, options);
  CaptureTexts capture;
  AddCaptureOptions(app, &capture, &options->capture);
  try {
    app.parse(argc, argv);
    if (options->model.empty() == options->check.empty()) {
      throw CLI::ValidationError("--model", "is required, or --check");
    }
    if (options->experts != ExpertSharing::kAuto && !options->reduce) {
      throw CLI::ValidationError("--experts", "needs --partition reduce");
    }
    if (options->backend == Backend::kCuda && options->margin_auto) {
      throw CLI::ValidationError("--margin", "auto is for --backend cpu");
    }
    ReadCaptureTexts(capture, &options->capture);
  } catch (const CLI::ParseError& error) {
    // One voice for the job, before MPI runs.
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const bool speaks = rank == nullptr || std::string(rank) == "0";
    const bool bad = error.get_exit_code() != 0;  // else help or version
    if (speaks && bad && rank != nullptr) {       // a line that weft-server finds and repeats
      spdlog::error("{} (weft-engine --help lists the options)", error.what());
    } else if (speaks) {
      app.exit(error);
    }
    *exit_code = bad ? 2 : 0;
    // The first rank that fails ends the job, which rank 0 does once it has spoken.
    if (!speaks && bad) std::this_thread::sleep_for(std::chrono::seconds(5));
    return false;
  }
  spdlog::set_level(spdlog::level::from_str(options->log_level));
  return true;
}

}  // namespace weft

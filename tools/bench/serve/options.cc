#include "tools/bench/serve/options.h"

#include "tools/cli/values.h"

namespace weft::bench {
namespace {

constexpr int64_t kMostTokens = 1 << 24;

// "N" or "LOW-HIGH".
void AddRange(CLI::App* app, const std::string& name, Range* range, const std::string& help) {
  const CLI::callback_t parse = [name, range](const CLI::results_t& results) {
    const std::string& text = results.back();
    const size_t dash = text.find('-', 1);
    try {
      range->low = range->high = cli::Integer(name, text.substr(0, dash), 1, kMostTokens);
      if (dash != std::string::npos) {
        range->high = cli::Integer(name, text.substr(dash + 1), 1, kMostTokens);
      }
    } catch (const cli::UsageError& error) {
      throw CLI::ValidationError(error.what());
    }
    if (range->high < range->low) {
      throw CLI::ValidationError(name,
                                 "the range must not end below its begin, got '" + text + "'");
    }
    return true;
  };
  app->add_option(name, parse, help)
      ->type_name("N|LOW-HIGH")
      ->default_str(std::to_string(range->low));
}

void AddLoad(CLI::App* serve, ServeOptions* o) {
  serve->add_option("--server,--target", o->target, "The server, HOST:PORT")
      ->envname("WEFT_SERVER")
      ->capture_default_str();
  serve
      ->add_option("--rate", o->rate,
                   "Open loop: requests a second, at random times (Poisson), whether or not the "
                   "ones before have ended. Times count from when a request was due")
      ->check(CLI::Range(1e-6, 1e6));
  serve
      ->add_option("--concurrency", o->concurrency,
                   "Closed loop: requests at once, each followed by the next. Several numbers "
                   "with commas are a run each")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->default_str("16");
  serve->add_option("--requests", o->requests, "Requests of a run")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  AddRange(serve, "--prompt-tokens", &o->prompt_tokens,
           "Length of the prompts, random token ids; of a range each length is as likely");
  AddRange(serve, "--output-tokens", &o->output_tokens,
           "Length of the answers; the model's stop tokens are ignored, but for prompts of a file");
  serve
      ->add_option("--prompts", o->prompts,
                   "Prompts from this file, over and over, instead of --prompt-tokens: one JSON "
                   "object a line with text or tokens (ids), and max_tokens if it is not to be "
                   "that of --output-tokens")
      ->check(CLI::ExistingFile);
  serve->add_option("--temperature", o->temperature, "Of sampling; 0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  serve->add_option("--seed", o->seed, "Of prompts, lengths, times and sampling")
      ->capture_default_str();
  serve->add_option("--priority", o->priority, "Of all requests, -10 to 10")
      ->check(CLI::Range(-10, 10))
      ->capture_default_str();
  serve->add_option("--client-id", o->client_id, "Of all requests");
  serve->add_option("--timeout", o->timeout, "Seconds after which a request counts as failed")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
}

}  // namespace

void AddServe(CLI::App* app, ServeOptions* o) {
  CLI::App* serve = app->add_subcommand(
      "serve",
      "Loads a running weft-server over gRPC and prints how long things took: TTFT, time to the "
      "first token, and its parts: the engine's queue; prefill, from the engine's first step to "
      "the "
      "token; the front end, what else passes from the request's arrival at weft-server to the "
      "token's; the way here, what is left: the network, gRPC and this program. TPOT, time per "
      "output token after the first, of a request; ITL, time between "
      "two messages with tokens; E2E, the whole request. Before that it checks that requests "
      "among others get the answer that they get alone.");
  AddLoad(serve, o);
  serve
      ->add_option("--check", o->check,
                   "Requests whose answers are compared, alone and among others; 0: none")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  serve
      ->add_option("--slo-ttft", o->slo_ttft,
                   "Goodput counts requests whose TTFT is at most this, in ms")
      ->check(CLI::Range(1e-3, 1e9));
  serve
      ->add_option("--slo-itl", o->slo_itl,
                   "Goodput counts requests of whose ITL 99 % are at most this, in ms")
      ->check(CLI::Range(1e-3, 1e9));
  serve->add_flag("--mixed", o->mixed,
                  "Instead: one long prompt arrives while --concurrency answers stream. ITL before "
                  "and meanwhile, TTFT of the long prompt alone and among them");
  serve->add_option("--long-tokens", o->long_tokens, "With --mixed, tokens of the long prompt")
      ->check(CLI::Range(int64_t{1}, kMostTokens))
      ->capture_default_str();
  serve
      ->add_option("--stream-tokens", o->stream_tokens,
                   "With --mixed, tokens of an answer; where it ends, the next one streams")
      ->check(CLI::Range(int64_t{8}, kMostTokens))
      ->capture_default_str();
  serve->add_option("--calm", o->calm, "With --mixed, seconds that the streams are measured alone")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  serve->add_flag("--json", o->json, "One JSON object instead of tables");
  serve->add_flag("--quiet", o->quiet, "No progress on stderr");
}

void CheckServe(const CLI::App& app, const ServeOptions& o) {
  if (o.rate > 0 && app.get_subcommand("serve")->count("--concurrency") > 0) {
    throw CLI::ValidationError("--rate",
                               "is an open loop and --concurrency a closed one; give one of them");
  }
  if (o.mixed && (o.rate > 0 || o.concurrency.size() > 1 || !o.prompts.empty())) {
    throw CLI::ValidationError("--mixed",
                               "takes one --concurrency, and neither --rate nor --prompts");
  }
}

}  // namespace weft::bench

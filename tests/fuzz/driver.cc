// Runs a fuzz target (LLVMFuzzerTestOneInput) on a corpus and on mutations of it, without a fuzzing
// engine: the same corpus, seed and number of runs give the same inputs anywhere. What fails is
// kept in a file. With -DWEFT_BUILD=fuzz libFuzzer takes this file's place.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/mutate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace weft::fuzz {
namespace {

constexpr unsigned kSecondsPerInput = 30;
constexpr const char* kUsage =
    "usage: %s CORPUS... [--runs N] [--seed S] [--dict FILE] [--max-len BYTES]\n"
    "Runs every file of the corpus (files or folders), then N mutations of them.\n";

struct Options {
  std::vector<std::string> corpus;
  uint64_t runs = 0;
  uint64_t seed = 1;
  size_t max_length = 1 << 16;
  std::string dict;
};

// What a signal handler needs to keep the input at hand.
std::string current;
std::string kept_as;

void KeepInput() {
  std::FILE* file = std::fopen(kept_as.c_str(), "wb");
  if (!file) return;
  std::fwrite(current.data(), 1, current.size(), file);
  std::fclose(file);
  std::fprintf(stderr, "fuzz: the input of %zu bytes is kept in %s\n", current.size(),
               kept_as.c_str());
}

void OnSignal(int signal) {
  std::fprintf(stderr, "fuzz: %s\n",
               signal == SIGALRM ? "an input takes too long" : strsignal(signal));
  KeepInput();
  _exit(1);
}

// Crashes: a sanitizer reports them itself and calls back; without one the signal comes here.
void Watch() {
  std::vector<int> signals = {SIGABRT, SIGALRM};
  if (__sanitizer_set_death_callback) {
    __sanitizer_set_death_callback(KeepInput);
  } else {
    signals.insert(signals.end(), {SIGSEGV, SIGBUS, SIGFPE, SIGILL});
    const rlimit memory{rlim_t{4} << 30, rlim_t{4} << 30};  // a huge allocation throws bad_alloc
    setrlimit(RLIMIT_AS, &memory);
  }
  static char stack[1 << 16];  // an overflown stack has no room for the handler
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof(stack);
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  for (int signal : signals) sigaction(signal, &action, nullptr);
}

void RunOne(const std::string& input, const std::string& name) {
  current = input;
  kept_as = name;
  alarm(kSecondsPerInput);
  try {
    // A copy of its own size, so that a sanitizer sees reads beyond its end.
    const std::vector<uint8_t> bytes(input.begin(), input.end());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: the target threw %s\n", error.what());
    KeepInput();
    std::exit(1);
  }
  alarm(0);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "fuzz: %s: cannot be opened\n", path.c_str());
    std::exit(2);
  }
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// In the order of their names, so that a run can be repeated.
std::vector<std::string> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const std::string& file : files) inputs.push_back(ReadFile(file));
  return inputs;
}

Options Parse(int argc, char** argv) {
  Options options;
  const auto fail = [&] {
    std::fprintf(stderr, kUsage, argv[0]);
    std::exit(2);
  };
  const auto number = [&](const char* text) {
    char* end = nullptr;
    const uint64_t value = std::strtoull(text, &end, 10);
    if (*text == '\0' || *text == '-' || *end != '\0') fail();
    return value;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("-")) {
      options.corpus.push_back(word);
      continue;
    }
    if (i + 1 == argc) fail();
    const char* value = argv[++i];
    if (word == "--runs") {
      options.runs = number(value);
    } else if (word == "--seed") {
      options.seed = number(value);
    } else if (word == "--max-len") {
      options.max_length = number(value);
    } else if (word == "--dict") {
      options.dict = value;
    } else {
      fail();
    }
  }
  if (options.corpus.empty()) fail();
  return options;
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  const std::string program = std::filesystem::path(argv[0]).filename();
  const std::vector<std::string> corpus = ReadCorpus(options.corpus);
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: the corpus is empty\n");
    return 2;
  }
  std::vector<std::string> words;
  if (!options.dict.empty()) words = ParseDictionary(ReadFile(options.dict));
  Watch();
  for (size_t i = 0; i < corpus.size(); ++i) {
    RunOne(corpus[i], program + "-crash-corpus-" + std::to_string(i));
  }
  std::printf("%s: %zu files of the corpus, %zu words\n", program.c_str(), corpus.size(),
              words.size());
  Mutator mutator(&corpus, &words, options.seed, options.max_length);
  const std::string name = program + "-crash-" + std::to_string(options.seed) + "-";
  for (uint64_t run = 1; run <= options.runs; ++run) {
    RunOne(mutator.Next(), name + std::to_string(run));
    if (run % std::max<uint64_t>(options.runs / 10, 1) == 0) {
      std::printf("%s: %llu of %llu runs\n", program.c_str(), static_cast<unsigned long long>(run),
                  static_cast<unsigned long long>(options.runs));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft::fuzz

int main(int argc, char** argv) { return weft::fuzz::Main(argc, argv); }

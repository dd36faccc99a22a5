// weft-chat: asks a weft-server. Answers go to stdout, everything else to stderr.
// Exit codes: 0 answered, 1 error, 2 wrong usage, 130 interrupted.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iostream>
#include <iterator>

#include "tools/chat/client.h"
#include "tools/chat/options.h"
#include "tools/chat/printer.h"
#include "tools/chat/repl.h"
#include "tools/chat/report.h"
#include "tools/chat/session.h"
#include "tools/chat/text_file.h"

namespace weft::chat {
namespace {

// Without SA_RESTART, so that waiting for a line ends too.
void InstallInterrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// A pipe or a file, not a terminal or /dev/null.
bool IsPipedIn() {
  struct stat status {};
  return fstat(STDIN_FILENO, &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string ReadStdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

int Usage(const std::string& sentence) {
  std::cerr << sentence << " (weft-chat --help lists the options)\n";
  return 2;
}

int Error(const std::string& sentence) {
  std::cerr << "error: " << sentence << "\n";
  return 1;
}

int AskOnce(const Options& options, Client* client, const Session& session,
            const std::string& question) {
  Printer printer(options.json);
  const Outcome outcome = client->Ask(session.Request(question), printer.listener());
  printer.End();
  if (options.json) std::cout << StatsJson(outcome) << std::flush;
  if (outcome.interrupted) return 130;
  if (!outcome.ok) return Error(outcome.error);
  if (options.stats) std::cerr << StatsText(outcome);
  return std::cout ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  if (const int code = ParseOptions(argc, argv, &options); code >= 0) return code;
  Session session(options.request);
  session.set_system(options.system);
  std::string error;
  if (std::string document; !options.file.empty()) {
    if (!ReadText(options.file, &document, &error)) return Error(error);
    session.set_document(std::move(document));
  }
  Client client(options.server, options.resume_seconds);
  const bool piped = IsPipedIn();
  if (!options.has_question && !piped) {
    if (options.json) return Usage("--json needs a question, by -q or piped in");
    InstallInterrupt();
    return RunRepl(options, &client, &session);
  }
  std::string question = options.question;
  if (!options.has_question) {
    question = ReadStdin();
  } else if (piped && options.file.empty()) {
    std::cerr << "reading the document from standard input (< /dev/null where there is none)\n";
    std::string document = ReadStdin();
    if (error = Utf8Error(document, "the document piped in"); !error.empty()) return Error(error);
    if (!document.empty()) {
      session.set_document(std::move(document));
    }
  }
  if (question.empty()) return Usage("the question must not be empty");
  if (error = Utf8Error(question, "the question"); !error.empty()) return Error(error);
  InstallInterrupt();
  return AskOnce(options, &client, session, question);
}

}  // namespace
}  // namespace weft::chat

int main(int argc, char** argv) { return weft::chat::Main(argc, argv); }

#include "server/launch/engine_command.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "server/launch/host_file.h"

namespace weft::server {
namespace {

namespace fs = std::filesystem;

bool IsProgram(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

// Whether mpirun will put more ranks on a host than it has slots.
bool Oversubscribes(const std::vector<std::string>& mpirun_args) {
  const char* always = std::getenv("OMPI_MCA_rmaps_base_oversubscribe");
  if (always != nullptr && std::regex_match(always, std::regex("[1-9][0-9]*|true|yes|enabled")))
    return true;
  // As an option of its own, or of --map-by (":OVERSUBSCRIBE").
  static const std::regex asks("(^|.*[^o])oversubscribe.*", std::regex::icase);
  return std::any_of(mpirun_args.begin(), mpirun_args.end(),
                     [](const std::string& word) { return std::regex_match(word, asks); });
}

}  // namespace

std::vector<std::string> EngineCommand(const Options& options, const std::string& mpirun,
                                       const std::string& engine_binary, int port) {
  std::vector<std::string> argv = {mpirun};
  // Open MPI refuses root, and more ranks than cores, unless told otherwise. Several ranks on a
  // small machine are a supported way to run; with a host file its slots decide.
  if (geteuid() == 0) argv.push_back("--allow-run-as-root");
  if (options.hostfile.empty()) {
    if (options.ranks > static_cast<int>(std::thread::hardware_concurrency())) {
      argv.push_back("--oversubscribe");
    }
  } else {
    argv.insert(argv.end(), {"--hostfile", options.hostfile});
  }
  argv.insert(argv.end(), options.mpirun_args.begin(), options.mpirun_args.end());
  argv.insert(argv.end(), {"-n", std::to_string(options.ranks), engine_binary});
  argv.insert(argv.end(), {"--model", fs::absolute(options.model).lexically_normal().string()});
  argv.insert(argv.end(), {"--listen", "127.0.0.1:" + std::to_string(port)});
  if (options.log_level != "info") {
    argv.insert(argv.end(), {"--log-level", options.log_level});
  }
  for (const EngineFlag& flag : options.engine_flags) {
    argv.insert(argv.end(), {flag.name, flag.value});
  }
  return argv;
}

std::string HostFileMistake(const Options& options) {
  if (options.hostfile.empty()) return "";
  std::ifstream file(options.hostfile);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return "--hostfile: '" + options.hostfile + "' cannot be read";
  const std::string mistake =
      CheckHosts(ParseHostFile(text.str()), options.ranks, Oversubscribes(options.mpirun_args));
  return mistake.empty() ? "" : "--hostfile: '" + options.hostfile + "' " + mistake;
}

std::string FindMpirun(const Options& options, std::string* error) {
  if (options.mpirun.find('/') != std::string::npos) {
    if (IsProgram(options.mpirun)) return options.mpirun;
    *error = "--mpirun must be a program that can be run; got '" + options.mpirun + "'";
    return "";
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (IsProgram(fs::path(folder) / options.mpirun)) {
      return (fs::path(folder) / options.mpirun).string();
    }
  }
  *error = "there is no '" + options.mpirun +
           "' in PATH, and an engine needs it to start its ranks; install Open MPI, name the "
           "program with --mpirun, or attach to a running engine with --engine";
  return "";
}

std::string FindEngineBinary(const Options& options, std::string* error) {
  std::error_code ignored;
  const fs::path path =
      options.engine_binary.empty()
          ? fs::read_symlink("/proc/self/exe", ignored).parent_path() / "weft-engine"
          : fs::absolute(options.engine_binary);
  if (IsProgram(path)) return path.string();
  *error = "there is no engine program '" + path.string() +
           "'; build weft-engine, or name it with --engine-binary";
  return "";
}

int FindFreePort(std::string* error) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      fd >= 0 && bind(fd, generic, sizeof address) == 0 && getsockname(fd, generic, &size) == 0;
  if (!bound) *error = std::string("no free port on 127.0.0.1: ") + std::strerror(errno);
  if (fd >= 0) close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace weft::server

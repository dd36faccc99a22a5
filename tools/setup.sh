# shellcheck shell=bash disable=SC2034
# Sourced by tools/demo and tools/test: what they share. Says what it does, and does only what is missing.

weft_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weft_build=$weft_root/build

say() { printf '\n== %s\n' "$*"; }

# Debian 12 packages to build and run everything; python3 for the demo's grading and the tests' tools.
weft_packages=(g++ cmake ninja-build pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc libopenmpi-dev openmpi-bin libspdlog-dev nlohmann-json3-dev libpcre2-dev
  libcli11-dev libedit-dev catch2 python3)

install_packages() {
  local missing=()
  for package in "${weft_packages[@]}"; do
    [ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" = "install ok installed" ] ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "All packages are installed"
    return
  fi
  say "Installing packages: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "Packages are missing and this is neither root nor a machine with sudo:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -q
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# configure BUILD_DIR [cmake options]
configure() {
  local dir=$1
  shift
  say "Configuring $(basename "$dir")"
  mkdir -p "$dir"
  if ! cmake -S "$weft_root" -B "$dir" -G Ninja "$@" >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    exit 1
  fi
}

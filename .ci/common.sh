# Sourced by ./test, ./lint and .ci/stress: where tools and builds are kept, what is installed, how long each part takes.

# Tools, Python environments and Node packages outlive a checkout.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate-test"
# On a build server every checkout is new; third-party crates are not built again for each.
if [ "${CI:-}" = true ]; then export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"; fi
target="${CARGO_TARGET_DIR:-target}"
tools="$cache/tools"
mkdir -p "$tools" "$target"
# The report of nextest is in the checkout, wherever the builds are.
report=target/nextest/default/junit.xml
# Tests look for tools beside what was built.
if [ ! -L "$target/tools" ]; then rm -rf "$target/tools"; fi
ln -sfn "$tools" "$target/tools"

parts=()
# Runs a command as one part of the whole: part NAME COMMAND ARGUMENT…
part() {
  part_name=$1
  part_begin=$SECONDS
  shift
  "$@"
  parts+=("$(printf '%7d s  %s' $((SECONDS - part_begin)) "$part_name")")
  part_name=
}

# Prints what each part took, and which of them failed.
table() {
  [ -z "${part_name:-}" ] || parts+=("$(printf '%7d s  %s: failed' $((SECONDS - part_begin)) "$part_name")")
  [ "${#parts[@]}" -eq 0 ] || printf '%s\n' "${parts[@]}" "$(printf '%7d s  in all' "$SECONDS")" >&2
}

# Builds a program with cargo into the tools unless it is there: cargo_tool NAME VERSION ARGUMENT…
cargo_tool() {
  local name=$1 version=$2 folder="$tools/$1-$2"
  shift 2
  [ -e "$folder/bin/$name" ] && return
  # Without optimisation: it runs for seconds.
  if ! cargo install --quiet --locked --debug "$@" --version "$version" --root "$folder" \
       --target-dir "$folder/target" "$name" >&2; then
    echo "cannot build $name $version with cargo install; see why above" >&2
    exit 1
  fi
  rm -rf "$folder/target"
}

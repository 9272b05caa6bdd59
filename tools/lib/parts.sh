# shellcheck shell=bash disable=SC2154
# Shared by .ci/run and tools/check-deep: parts with a heading, and one closing line over all of them.
# Sourced by bash after common.sh.

total_passed=0
total_failed=0
total_skipped=0
bad_parts=()

heading() {
    printf '\n=== %s\n' "$*"
}

# part NAME COMMAND...: COMMAND ends with a line `N passed, N failed`, which is added up.
part() {
    local name=$1 begin=$SECONDS status out last
    shift
    heading "$name"
    out=$(mktemp) || exit "$own_failure"
    "$@" 2>&1 </dev/null | tee "$out"
    status=${PIPESTATUS[0]}
    last=$(tail -n 1 "$out")
    rm -f "$out"
    if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        total_passed=$((total_passed + BASH_REMATCH[1]))
        total_failed=$((total_failed + BASH_REMATCH[2]))
        total_skipped=$((total_skipped + ${BASH_REMATCH[4]:-0}))
        [ "$status" = 0 ] || [ "${BASH_REMATCH[2]}" != 0 ] || total_failed=$((total_failed + 1))
    else
        total_failed=$((total_failed + 1))
        status=1
    fi
    [ "$status" = 0 ] || bad_parts+=("$name")
    printf '=== %s: %s, %d s\n' "$name" "$([ "$status" = 0 ] && echo ok || echo FAILED)" $((SECONDS - begin))
}

# check NAME COMMAND...: one thing that holds (status 0), cannot be looked at here (77, its last line says why) or not.
check() {
    local name=$1 begin=$SECONDS status
    shift
    heading "$name"
    ("$@") </dev/null
    status=$?
    case $status in
    0) total_passed=$((total_passed + 1)) ;;
    77) total_skipped=$((total_skipped + 1)) ;;
    *) total_failed=$((total_failed + 1)); bad_parts+=("$name") ;;
    esac
    case $status in 0) status=ok ;; 77) status=skipped ;; *) status=FAILED ;; esac
    printf '=== %s: %s, %d s\n' "$name" "$status" $((SECONDS - begin))
}

finish() {
    printf '\n'
    [ ${#bad_parts[@]} = 0 ] || printf 'failed: %s\n' "${bad_parts[@]}"
    printf '%d s in all\n' "$SECONDS"
    if [ "$total_skipped" != 0 ]; then
        printf '%d skipped, reasons above\n' "$total_skipped"
    fi
    printf '%d passed, %d failed\n' "$total_passed" "$total_failed"
    [ "$total_failed" = 0 ] && [ "$total_passed" != 0 ]
    exit
}

c_files() {
    if git -C "$source_root" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -C "$source_root" ls-files '*.c' '*.h'
    else
        (cd "$source_root" && find runtime plugins models tests tools -name '*.[ch]')
    fi
}

# The public headers are laid out by hand: their macros carry aligned backslashes and pages of manual that the
# formatter tears apart. Everything else is as .clang-format says.
check_format() {
    local file bad=0
    command -v clang-format >/dev/null || { echo "no clang-format here"; return 77; }
    while IFS= read -r file; do
        case $file in runtime/include/fuserun/*) continue ;; esac
        clang-format --dry-run -Werror "$source_root/$file" >/dev/null 2>&1 && continue
        echo "not formatted: $file (clang-format -i $file)"
        bad=1
    done < <(c_files)
    return "$bad"
}

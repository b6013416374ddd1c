# Functions of .ci/run, .ci/asan and .ci/matrix. They are called in the root of the checkout.

# watch_output FOLDER: copies all further output to FOLDER/output, for `stopped`
watch_output() {
    exec 3>&1 > >(tee "$1/output") 2>&1
    output_copied_by=$!
}

# stopped FOLDER STATUS: what the copied output says of why the check stops, as its last 40 lines
stopped() {
    local waited
    exec >&3 2>&3 3>&-
    for ((waited = 0; waited < 50; waited++)); do
        kill -0 "$output_copied_by" 2> /dev/null || break
        sleep 0.1
    done
    # Of the section that stops.
    sed -n '/^==== /h; /^==== /!H; ${x; p}' "$1/output" | tr -d '\r' | cut -c 1-250 > "$1/section"
    printf '\n---- stopped with status %d in: %s\n' "$2" "$(sed -n '1s/^==== //p' "$1/section")"
    grep -E '^(FAILED|ERROR|E  |Fatal |\.ci/|error)|^[A-Za-z_.]*(Error|Exception)\b|[Ee]rror:|ERROR: |crashed while' "$1/section" |
        awk '!seen[$0]++' | tail -n 22 || true
    printf -- '---- the end of its output\n'
    tail -n 12 "$1/section"
}

# twice INTERPRETER COMMAND...: runs a command that ends in pytest, in the current folder. What fails is run once more by
# INTERPRETER (words), alone and serially; what passes then is added to the file $SECOND_TIME, and what fails again fails this. A
# process that crashes, a run that breaks off and more than ten failures get no second chance.
twice() {
    # No name of a variable that the functions of callers read.
    local interpreter_of_tests=$1 status=0 name names printed
    shift
    printed=$(mktemp)
    rm -rf .pytest_cache
    "$@" 2>&1 | tee "$printed" || status=$?
    if ((status == 1)) && [[ -f .pytest_cache/v/cache/lastfailed ]] && ! grep --quiet 'crashed while running' "$printed"; then
        mapfile -t names < <(python3 -c 'import json, sys; print(*json.load(sys.stdin), sep="\n")' < .pytest_cache/v/cache/lastfailed)
        if ((${#names[@]} <= 10)); then
            status=0
            for name in "${names[@]}"; do
                printf '\nonce more, alone: %s\n' "$name"
                # shellcheck disable=SC2086  # words
                if $interpreter_of_tests -m pytest -q -n 0 -p no:cacheprovider -m "" "$name" < /dev/null; then
                    printf '%s\n' "$name" >> "$SECOND_TIME"
                else
                    status=1
                fi
            done
        fi
    fi
    rm -f "$printed"
    return "$status"
}

# two_at_a_time FOLDER FUNCTION...: calls functions, each for one core, two at a time. Prints what each printed, in their order
# but those that failed last, and fails if one failed.
two_at_a_time() {
    local folder=$1 name status ended failed=()
    local -A running=()
    shift
    for name in "$@" ''; do
        # After the last one, wait for all.
        while ((${#running[@]} >= (${#name} ? 2 : 1))); do
            status=0
            wait -n -p ended "${!running[@]}" || status=$?
            if ((status != 0)); then failed+=("${running[$ended]}"); fi
            unset "running[$ended]"
        done
        if [[ $name ]]; then
            "$name" > "$folder/$name.output" 2>&1 &
            running[$!]=$name
        fi
    done
    for name; do
        if [[ " ${failed[*]} " != *" $name "* ]]; then cat "$folder/$name.output"; fi
    done
    for name in "${failed[@]}"; do
        cat "$folder/$name.output"
    done
    ((${#failed[@]} == 0))
}

# what_passed_the_second_time: a line for each such test
what_passed_the_second_time() {
    if [[ -s $SECOND_TIME ]]; then
        sed 's/^/passed the second time: /' "$SECOND_TIME"
    fi
}

# copy_of_the_checkout FOLDER: tracked files and new ones, as the next commit would hold them. Nothing that git ignores:
# an old build/ or *.egg-info would find its way into what is built here.
copy_of_the_checkout() {
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do
            if [[ -e $file || -L $file ]]; then printf '%s\0' "$file"; fi
        done |
        tar --null --files-from=- --create --file=- |
        tar --extract --file=- --directory="$1"
}

# pinned_tools NAME...: these as the extra "test" pins them, a line each
pinned_tools() {
    local name
    for name; do
        sed -n "s/^    \"\($name==[^\"]*\)\",.*/\1/p" pyproject.toml
    done
}

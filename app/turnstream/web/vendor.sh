#!/usr/bin/env bash
# The libraries of the page, fetched by npm at exact versions, checked, and unpacked into static/vendor. `make vendor`
set -euo pipefail
cd "$(dirname "$0")/static/vendor"

# package@version, sha512 of its archive as the registry states it, then the files that are kept: from=to
fetch() {
    local package="$1" integrity="$2" archive
    shift 2
    archive="$(npm pack --silent --pack-destination "$work" "$package")"
    archive="$work/${archive##*/}"
    [ "sha512-$(openssl dgst -sha512 -binary "$archive" | base64 -w0)" = "$integrity" ] ||
        { echo "$package is not what it was: look at it, then change the checksum" >&2; exit 1; }
    for file in "$@"; do
        tar --extract --gzip --to-stdout --file "$archive" "package/${file%%=*}" >"${file##*=}"
    done
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

fetch marked@18.2.1 \
    sha512-ii4bxCTCqqwpT86XZWgJNs+ZnAIZksmLGYMViWA7PDIXYIeNo1x6cDdX3JOip9NM/cI6p8z57FxliACboTruMA== \
    lib/marked.esm.js=marked.esm.js LICENSE=marked.LICENSE
fetch dompurify@3.4.18 \
    sha512-ofe3wI/uNm68HInABYFJYqQxRw1EaKAjNdrFVKqjUY+UZurvNd2L/HuQe097s/4RivWiZyP6tT7aoT8atjfhwg== \
    dist/purify.min.js=purify.min.js LICENSE=purify.LICENSE
fetch temml@0.13.5 \
    sha512-aPkDDgunanpLNL0ql32HbolqLep+w8DRcVXRql7rWrMt/PhczdLgL4UBYYVU3BYjCNjkGq4EqwIicu/zWr1iOg== \
    dist/temml.min.js=temml.esm.js LICENSE=temml.LICENSE
printf '\nexport default temml\n' >>temml.esm.js # so that it can be imported when the first formula is seen

sha256sum --check --quiet SHA256SUMS

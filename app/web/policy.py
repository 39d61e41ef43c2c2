"""What a browser may do with the page: run its own files, speak with its own server, and nothing else."""

_CONTENT = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    # Pictures that people attach are read with their token, and shown from the memory of the page.
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    # Text becomes HTML in one place only, which is the sanitiser's.
    "require-trusted-types-for": "'script'",
    "trusted-types": "dompurify turnstream",
}

HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _CONTENT.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "geolocation=(self), camera=(), microphone=()",
}

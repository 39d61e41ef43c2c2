// The service worker of the page at `/`: a reload without a network shows the page. It caches the files of one version,
// which are the same for everybody, and caches nothing that belongs to an owner.

const worker = /** @type {any} */ (self)
/** @type {Record<string, string>} the digest of each file, by its address below the scope. The server writes them here. */
const FILES = {} // FILES

const { scope } = worker.registration
const PREFIX = `turnstream ${scope} `
const NAME = PREFIX + FILES['static/VERSION/index.html'] // each version has another page, and so another cache
const AWAY = new Set([502, 503, 504]) // answers of a proxy that cannot reach the server

const addressOf = (path) => new URL(path, scope).href
const addresses = new Set(Object.keys(FILES).map(addressOf))

worker.addEventListener('install', (event) => {
  worker.skipWaiting()
  // In browsers that can route requests past the worker, calls of the API do not wait until the worker has started.
  event.addRoutes?.({ condition: { urlPattern: addressOf('api/*') }, source: 'network' })
  event.waitUntil(keep())
})

worker.addEventListener('activate', (event) => event.waitUntil(Promise.all([preload(), forgetOthers()])))

worker.addEventListener('fetch', (event) => {
  const { method, mode, url } = event.request
  const { origin, pathname } = new URL(url)
  if (method !== 'GET') return
  if (mode === 'navigate' && origin + pathname === scope) event.respondWith(page(event))
  else if (addresses.has(url)) event.respondWith(file(event.request))
})

/**
 * Caches the files. If a replica of another version answers during a deploy, the digests differ: the next visit tries
 * again.
 */
async function keep() {
  const requests = Object.entries(FILES).map(([path, integrity]) => new Request(addressOf(path), { integrity }))
  await (await caches.open(NAME)).addAll(requests)
}

async function preload() {
  await worker.registration.navigationPreload?.enable()
}

async function forgetOthers() {
  const others = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== NAME)
  await Promise.all(others.map((name) => caches.delete(name)))
}

const kept = (address) => caches.match(address, { cacheName: NAME, ignoreVary: true })

/** Answers with the page of the server, or with the cached page if the server cannot be reached. */
async function page(event) {
  const own = () => kept(addressOf('static/VERSION/index.html'))
  try {
    const response = (await event.preloadResponse) ?? (await fetch(event.request))
    return (AWAY.has(response.status) && (await own())) || response
  } catch (error) {
    return (await own()) ?? Promise.reject(error)
  }
}

const file = async (request) => (await kept(request.url)) ?? fetch(request)

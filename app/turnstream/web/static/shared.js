// The page of a shared chat. Its address is its only credential. A live chat is fetched again every two seconds; while
// nothing has changed, the response is empty.

import { find, h, setText } from './dom.js'
import { Prose } from './prose.js'
import { prettyJson } from './highlight.js'
import { TEXTS } from './texts.js'

const { shared: texts } = TEXTS
const PAUSE = 2_000 // milliseconds
const SECRET = location.pathname.split('/').pop()
const ADDRESS = new URL(`../api/shared/${SECRET}`, location.href).href

/** @type {string | null} */
let tag = null
/** @type {any[]} */
let drawn = []

/** Draws a block. Returns its element, and a function that shows a later state of the same block. */
function viewOf(block) {
  switch (block.type) {
    case 'call':
    case 'result':
      return detailsOf(block)
    case 'file':
      return fileOf(block)
    default: {
      const prose = new Prose()
      const update = ({ text, open }) => prose.update(text, open)
      update(block)
      return { element: prose.element, update }
    }
  }
}

function detailsOf({ type, name, is_error: bad }) {
  const body = h('pre')
  const title = type === 'call' ? texts.call(name) : texts.result(name)
  const element = h('details', { class: bad ? 'bad' : null }, h('summary', {}, title), body)
  const update = ({ text }) => setText(body, type === 'call' ? prettyJson(text) : text)
  return { element, update }
}

function fileOf({ name, upload }) {
  if (!upload) return { element: h('p', { class: 'hint' }, name), update: () => {} }
  const href = `${ADDRESS}/files/${upload}`
  const picture = h('img', { src: href, alt: name, loading: 'lazy' })
  const link = h('a', { href, download: name }, name)
  picture.addEventListener('error', () => picture.remove()) // the file is a document
  return { element: h('p', {}, picture, link), update: () => {} }
}

/** Shows the blocks. Elements of earlier blocks are kept while the types agree, so that a selection in them stays. */
function drawTurn(view, { role, blocks }) {
  const types = blocks.map(({ type }) => type)
  if (!view || view.role !== role || view.types.some((type, index) => type !== types[index])) {
    view?.element.remove()
    view = { role, types: [], blocks: [], element: h('article', { class: role, 'aria-label': texts[role] }) }
  }
  blocks.forEach((block, index) => {
    if (!view.blocks[index]) {
      view.blocks[index] = viewOf(block)
      view.types[index] = block.type
      view.element.append(view.blocks[index].element)
    }
    view.blocks[index].update(block)
  })
  return view
}

function draw({ title, live, more, turns }) {
  const name = title ?? texts.untitled
  document.title = name
  setText(find('#title'), name)
  setText(find('#about'), [live ? texts.live : texts.snapshot, more && texts.more].filter(Boolean).join(' '))
  for (const view of drawn.splice(turns.length)) view.element.remove()
  drawn = turns.map((turn, index) => drawTurn(drawn[index], turn))
  find('#turns').append(...drawn.map(({ element }) => element).filter((element) => !element.isConnected))
}

async function refresh() {
  const response = await fetch(ADDRESS, { cache: 'no-store', headers: tag ? { 'If-None-Match': tag } : {} })
  if (response.status === 304) return true
  if (response.status === 404) {
    draw({ title: texts.gone, live: false, more: false, turns: [] })
    setText(find('#about'), texts.goneReason)
    return false
  }
  if (!response.ok) throw new Error(String(response.status))
  tag = response.headers.get('ETag')
  const chat = await response.json()
  draw(chat)
  return chat.live
}

async function follow() {
  for (;;) {
    try {
      const continues = await refresh()
      document.documentElement.dataset.ready = 'yes' // for programs that drive the page
      if (!continues) return
    } catch {
      setText(find('#about'), texts.away)
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE))
    if (document.hidden) await new Promise((resolve) => addEventListener('visibilitychange', resolve, { once: true }))
  }
}

void follow()

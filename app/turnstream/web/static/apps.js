// Apps of MCP servers: an untrusted page beside a result, in a frame without an origin, and the requests it may make.

import { h, setText } from './dom.js'
import { TEXTS } from './texts.js'

const { apps: texts } = TEXTS

const VERSION = '2026-01-26'
const HEIGHTS = [80, 640] // pixels
const MOST_OPEN = 4 // tool calls of an app at the same time
const MOST_WORDS = 10_000 // characters that an app may propose for a message
const NOT_FOUND = { code: -32601, message: 'This host does not offer that.' }

/**
 * The button that opens the app of a result, and then the frame of the app with the calls that the app makes. `readApp`
 * reads the page of the app, `propose` fills the message field, and `appCalls` returns the calls of the app of a call.
 */
export class AppView {
  constructor({ readApp, propose, appCalls }) {
    this.readApp = readApp
    this.propose = propose
    this.appCalls = appCalls
    this.open = 0
    /** @type {any} */
    this.calls = null
    this.button = h('button', { type: 'button', onclick: () => this.#open() }, texts.open)
    this.trouble = h('p', { class: 'hint', role: 'alert' })
    this.element = h('div', { class: 'app', hidden: true }, this.button, this.trouble)
    this.receive = (event) => this.#receive(event)
  }

  update(call, result) {
    this.call = call
    this.result = result
    this.element.hidden = !uriOf(result)
  }

  remove() {
    this.#shut()
    this.calls?.remove()
  }

  #shut() {
    removeEventListener('message', this.receive)
    this.frame?.remove()
  }

  async #open() {
    this.button.disabled = true
    setText(this.trouble, '')
    try {
      const { server, resourceUri: uri } = this.result.data.ui
      this.app = await this.readApp(server, uri)
    } catch (error) {
      setText(this.trouble, error.message)
      this.button.disabled = false
      return
    }
    // Without `allow-same-origin` its origin is opaque: it reaches neither this page nor what the browser stores for it.
    const attributes = { sandbox: 'allow-scripts', src: this.app.frame, title: texts.name(this.call.name), allow: '' }
    this.frame = h('iframe', { ...attributes, referrerpolicy: 'no-referrer' })
    this.isFilled = false
    addEventListener('message', this.receive)
    this.calls ??= this.appCalls(this.call.id)
    this.button.replaceWith(this.frame, this.calls.element)
    this.calls.begin().catch((error) => setText(this.trouble, error.message))
  }

  #close(reason) {
    this.#shut()
    this.frame = null
    setText(this.trouble, reason)
  }

  #send(message) {
    // The origin of the frame is `null`, so only the target * reaches it. The app gets nothing that its server does not
    // know.
    this.frame?.contentWindow?.postMessage({ jsonrpc: '2.0', ...message }, '*')
  }

  #notify(method, params) {
    this.#send({ method, params })
  }

  #receive({ source, data }) {
    if (!this.frame || source !== this.frame.contentWindow || data?.jsonrpc !== '2.0') return
    const { id, method, params } = data
    if (method === 'ui/notifications/sandbox-proxy-ready') {
      // If the frame loads a second time, the app has navigated elsewhere, perhaps to a page with another policy.
      if (this.isFilled) return this.#close(texts.left)
      this.isFilled = true
      return this.#notify('ui/notifications/sandbox-resource-ready', { html: this.app.html })
    }
    if (method === 'ui/notifications/initialized') return this.#begin()
    if (method === 'ui/notifications/size-changed') return this.#resize(params?.height)
    if (id === undefined || typeof method !== 'string') return
    const { frame } = this
    Promise.resolve(this.#answer(method, params)).then(
      (answer) => frame === this.frame && this.#send({ id, ...answer }),
    )
  }

  #answer(method, params) {
    if (method === 'tools/call') return this.#callTool(params)
    if (method === 'ping') return { result: {} }
    if (method === 'ui/initialize')
      return {
        result: {
          protocolVersion: VERSION,
          hostInfo: { name: 'turnstream', version: '1' },
          hostCapabilities: { message: { text: {} }, serverTools: {} },
          hostContext: {
            theme: matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light',
            displayMode: 'inline',
            availableDisplayModes: ['inline'],
            locale: navigator.language,
            platform: 'web',
          },
        },
      }
    if (method !== 'ui/message') return { error: NOT_FOUND }
    // The person decides whether to send it: no text from an app reaches a model without a person.
    const words = [params?.content].flat().filter((part) => part?.type === 'text' && typeof part.text === 'string')
    const text = words.map((part) => part.text).join('\n\n')
    if (document.activeElement !== this.frame || !text.trim()) return refused(texts.absent)
    this.propose(text.slice(0, MOST_WORDS))
    return { result: {} }
  }

  /**
   * Makes a call, about which the server decides, and a person if the tool needs an approval. Only the app gets the
   * result.
   */
  async #callTool(params) {
    if (this.open >= MOST_OPEN) return refused(texts.busy)
    this.open += 1
    try {
      const result = await this.calls.make(`${params?.name ?? ''}`, params?.arguments ?? {})
      return result ? { result: resultOf(result) } : refused(texts.unanswered)
    } catch (error) {
      return refused(error.message)
    } finally {
      this.open -= 1
    }
  }

  #begin() {
    let input = {}
    try {
      input = JSON.parse(this.call.text || '{}')
    } catch {
      // The input is not JSON: the result of the call describes the error.
    }
    this.#notify('ui/notifications/tool-input', { arguments: input })
    this.#notify('ui/notifications/tool-result', resultOf(this.result))
  }

  #resize(height) {
    if (!Number.isFinite(height)) return
    const [least, most] = HEIGHTS
    this.frame.height = `${Math.min(most, Math.max(least, Math.ceil(height)))}`
  }
}

const refused = (message) => ({ error: { code: -32000, message } })

/** Returns a result as the MCP server sent it. */
function resultOf({ text, is_error: isError, data }) {
  const { structuredContent, _meta } = data ?? {}
  return { content: [{ type: 'text', text }], structuredContent, _meta, isError: Boolean(isError) }
}

/** Returns the address of the app of a result, which must begin with `ui://`. */
function uriOf(result) {
  const ui = result && !result.open ? result.data?.ui : undefined
  return typeof ui?.resourceUri === 'string' && ui.resourceUri.startsWith('ui://') ? ui.resourceUri : undefined
}

// What MCP servers offer to people: prompts behind a slash in the message field, and resources to attach.

import { asked, attempts, find, h, setText } from './dom.js'
import { serversButton } from './servers.js'
import { TEXTS } from './texts.js'

const { offers: texts } = TEXTS

const FRESH = 60_000 // milliseconds for which a list is used: the server caches its lists, too
const TYPING = 200 // milliseconds
const MOST_PROPOSALS = 12
const COMMAND = /^\/(\S*)$/

// --- prompts ---------------------------------------------------------------------------------------------------------

/**
 * Offers prompts while the message is a slash and the beginning of a name. `report` shows why a prompt cannot be used.
 */
export function followPrompts(client, composer, report) {
  const box = find('#prompts')
  const list = find('#prompt-list')
  const status = find('p', box)
  const { field } = composer
  /** @type {{ prompts: any[], unavailable: any[] }} */
  let known = { prompts: [], unavailable: [] }
  let readAt = -Infinity
  let chosen = 0
  let dismissed = false

  const command = () => (dismissed ? null : COMMAND.exec(field.value)?.[1].toLowerCase())
  const found = () => known.prompts.filter((prompt) => matches(prompt, command() ?? ''))

  async function read() {
    if (performance.now() - readAt < FRESH) return
    readAt = performance.now()
    try {
      known = await client.request('GET', '/api/mcp/prompts')
    } catch (error) {
      readAt = -Infinity
      known = { prompts: [], unavailable: [{ reason: error.message }] }
    }
    show()
  }

  function show() {
    const isCommand = typeof command() === 'string'
    const prompts = isCommand ? found() : []
    const reasons = known.unavailable.map(({ reason }) => reason)
    box.hidden = !isCommand || (!prompts.length && (field.value !== '/' || !reasons.length))
    chosen = Math.min(chosen, Math.max(0, prompts.length - 1))
    list.replaceChildren(...prompts.map(option))
    setText(status, reasons.join('\n'))
    if (box.hidden || !prompts.length) field.removeAttribute('aria-activedescendant')
    else {
      field.setAttribute('aria-activedescendant', `prompt-${chosen}`)
      list.children[chosen].scrollIntoView({ block: 'nearest' })
    }
  }

  function option(prompt, place) {
    return h(
      'li',
      {
        id: `prompt-${place}`,
        role: 'option',
        'aria-selected': `${place === chosen}`,
        onmousedown: (event) => event.preventDefault(), // the field keeps the focus
        onclick: () => use(prompt),
      },
      h('bdi', {}, `/${prompt.name}`),
      h('span', { class: 'about', dir: 'auto' }, prompt.description || prompt.title),
      h('bdi', { class: 'of' }, prompt.server),
    )
  }

  async function use(prompt) {
    dismissed = true
    show()
    report('')
    try {
      const blocks = prompt.arguments.length ? await filledIn(client, prompt) : await rendered(client, prompt, {})
      if (!blocks) return
      const words = blocks.filter(({ type }) => type === 'text').map(({ text }) => text)
      composer.fill(
        words.join('\n\n'),
        blocks.filter(({ type }) => type !== 'text'),
      )
    } catch (error) {
      report(error.message)
    } finally {
      field.focus()
    }
  }

  function move(event, by) {
    event.preventDefault()
    chosen = (chosen + by + list.children.length) % list.children.length
    show()
  }

  field.setAttribute('aria-controls', 'prompt-list')
  field.addEventListener('input', () => {
    dismissed = false
    chosen = 0
    show()
    if (typeof command() === 'string') read()
  })
  // Runs before the listener of the field, in which Enter sends the message.
  composer.form.addEventListener(
    'keydown',
    (event) => {
      if (event.target !== field || box.hidden || event.isComposing) return
      const prompts = found()
      if (event.key === 'Escape') dismissed = true
      else if (!prompts.length) return
      else if (event.key === 'ArrowDown') move(event, 1)
      else if (event.key === 'ArrowUp') move(event, -1)
      else if (event.key === 'Enter' || event.key === 'Tab') {
        event.preventDefault()
        use(prompts[chosen])
      } else return
      event.stopPropagation()
      show()
    },
    true,
  )
}

const matches = ({ name, title, server }, words) =>
  [name, title, server].some((text) => text.toLowerCase().includes(words))

async function rendered(client, { server, name }, values) {
  const body = { server, name, arguments: values }
  return (await client.request('POST', '/api/mcp/prompts/render', body)).blocks
}

/**
 * Asks for the arguments of a prompt until the server accepts them. Resolves to the blocks of the prompt, or to
 * nothing.
 */
async function filledIn(client, prompt) {
  const fields = prompt.arguments.flatMap(({ name, title, description, required }) => {
    const input = h('textarea', { name, rows: 1, required, dir: 'auto' })
    const hint = description && h('span', { class: 'hint', dir: 'auto' }, description)
    const label = h('label', {}, required ? title : texts.optional(title), input, hint)
    return [label, completions(client, prompt, input, title)]
  })
  const { trouble, attempt } = attempts()
  let blocks = null
  const submit = (event) => {
    event.preventDefault()
    const form = event.target.closest('form')
    if (!form.reportValidity()) return
    const given = [...form.querySelectorAll('textarea')].filter(({ value }) => value)
    attempt(async () => {
      blocks = await rendered(client, prompt, Object.fromEntries(given.map(({ name, value }) => [name, value])))
      form.closest('dialog').close()
    })
  }
  await asked(
    texts.fill(prompt.title),
    prompt.description && h('p', { class: 'hint', dir: 'auto' }, prompt.description),
    fields,
    trouble,
    h(
      'footer',
      {},
      h('button', { value: '', formnovalidate: true }, TEXTS.close),
      h('button', { type: 'button', class: 'primary', onclick: submit }, texts.use),
    ),
  )
  return blocks
}

/** Creates buttons with the values that the server proposes for a field while the field has the focus. */
function completions(client, { server, name }, input, title) {
  const list = h('div', { class: 'suggestions', role: 'group', 'aria-label': texts.proposals(title), hidden: true })
  let asked = 0
  let timer
  const put = (value) => {
    input.value = value
    list.hidden = true
    input.focus()
  }
  async function show() {
    const ask = ++asked
    const others = [...input.form.querySelectorAll('textarea')].filter((one) => one !== input && one.value)
    const given = Object.fromEntries(others.map((one) => [one.name, one.value]))
    const body = { server, name, argument: input.name, value: input.value, arguments: given }
    const answer = await client.request('POST', '/api/mcp/prompts/complete', body).catch(() => ({ values: [] }))
    if (ask !== asked) return // the person has typed more
    const values = answer.values.filter((value) => value !== input.value).slice(0, MOST_PROPOSALS)
    list.replaceChildren(...values.map((value) => h('button', { type: 'button', onclick: () => put(value) }, value)))
    list.hidden = !values.length
  }
  const later = () => {
    clearTimeout(timer)
    timer = setTimeout(show, TYPING)
  }
  input.addEventListener('focus', () => list.childElementCount || later())
  input.addEventListener('input', later)
  return list
}

// --- resources -------------------------------------------------------------------------------------------------------

/** Opens the dialog with the resources of the servers. A chosen resource is attached to the message. */
export async function showResources(client, attachments) {
  const { resources, templates, unavailable } = await client.request('GET', '/api/mcp/resources')
  const { trouble, attempt } = attempts()
  const attach = async (server, uri, { target }) => {
    target.disabled = true
    await attempt(async () => {
      const { blocks } = await client.request('POST', '/api/mcp/resources/attach', { server, uri })
      attachments.putBack(blocks.map((block) => ({ block })))
      target.closest('dialog').close()
    })
    target.disabled = false
  }
  const items = resources.map((resource) => resourceItem(resource, attach))
  const search = h('input', { type: 'search', autocomplete: 'off', 'aria-label': texts.find, placeholder: texts.find })
  search.addEventListener('input', () => {
    const words = search.value.toLowerCase()
    for (const item of items) item.hidden = !item.textContent.toLowerCase().includes(words)
  })
  search.addEventListener('keydown', (event) => event.key === 'Enter' && event.preventDefault()) // the dialog would close
  const empty = !resources.length && !templates.length
  await asked(
    texts.resources,
    h('p', { class: 'hint' }, empty ? texts.noResources : texts.about),
    resources.length > 5 && search,
    items.length > 0 && h('ul', { class: 'offered' }, items),
    templates.map((template) => templateForm(template, attach)),
    unavailable.map(({ reason }) => h('p', { class: 'hint', dir: 'auto' }, reason)),
    trouble,
    h('footer', {}, await serversButton(client), h('button', { value: '' }, TEXTS.close)),
  )
}

function resourceItem({ server, uri, title, description }, attach) {
  const button = h('button', { type: 'button', title: uri, onclick: (event) => attach(server, uri, event) }, title)
  button.setAttribute('aria-label', texts.attach(title))
  const about = h('span', { class: 'hint', dir: 'auto' }, [server, description].filter(Boolean).join(' · '))
  return h('li', { 'data-uri': uri }, button, about)
}

/** Creates a field for each variable of an address. */
function templateForm({ server, uri_template: template, title, description }, attach) {
  const names = [...template.matchAll(/\{[+#./;?&]?([^{}]+)\}/g)].flatMap(([, list]) => list.split(','))
  const inputs = new Map(names.map((name) => [name.replace(/\*$|:\d+$/, ''), h('input', { autocomplete: 'off' })]))
  const fields = [...inputs].map(([name, input]) => h('label', {}, texts.variable(name), input))
  const press = (event) => {
    const values = Object.fromEntries([...inputs].map(([name, { value }]) => [name, value]))
    return attach(server, expanded(template, values), event)
  }
  return h(
    'fieldset',
    {},
    h('legend', { dir: 'auto' }, title),
    h('p', { class: 'hint', dir: 'auto' }, [server, description].filter(Boolean).join(' · ')),
    fields,
    h('button', { type: 'button', onclick: press }, texts.attachOther),
  )
}

const percent = (/** @type {string} */ sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`

/** Expands the template of an address (RFC 6570), whose variables are texts. */
export function expanded(/** @type {string} */ template, /** @type {Record<string, string>} */ values) {
  return template.replace(/\{([+#./;?&]?)([^{}]+)\}/g, (_, operator, list) => {
    const reserved = operator === '+' || operator === '#'
    const named = operator === ';' || operator === '?' || operator === '&'
    const parts = list.split(',').flatMap((part) => {
      const [, name, length] = /^(.*?)(?::(\d+)|\*)?$/.exec(part) ?? []
      const value = values[name]
      if (!value) return []
      const cut = [...value].slice(0, length ? Number(length) : undefined).join('')
      const text = reserved ? encodeURI(cut) : encodeURIComponent(cut).replace(/[!'()*]/g, percent)
      return [named ? `${name}=${text}` : text]
    })
    if (!parts.length) return ''
    const first = operator === '+' ? '' : operator
    const between = !operator || reserved ? ',' : operator === '?' ? '&' : operator
    return first + parts.join(between)
  })
}

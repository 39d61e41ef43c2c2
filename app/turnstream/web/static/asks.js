// Forms for calls that wait for a person: the approval of a tool, or the result of a tool that this page runs.

import { h } from './dom.js'
import { highlighted, prettyJson } from './highlight.js'
import { TEXTS } from './texts.js'

const { asks: texts } = TEXTS

/** The tools that this page runs. The first turn of a chat declares them, as any client declares its own. */
export const PAGE_TOOLS = [
  {
    type: 'client',
    name: 'confirm',
    description: 'Asks the user a question that is answered with yes or no, and tells the answer.',
    input_schema: {
      type: 'object',
      properties: { question: { type: 'string', description: 'in the language of the user' } },
      required: ['question'],
    },
  },
  {
    type: 'client',
    name: 'geolocation',
    description: 'Where the user is now: latitude, longitude and accuracy in metres. The user is asked first.',
    input_schema: { type: 'object', properties: { reason: { type: 'string', description: 'why it is needed' } } },
  },
]

/**
 * Creates the form for one action. `written` is the input as the model wrote it. `answer` sends the decision, and
 * resolves to the reason if the server refuses the decision.
 */
export function askForm(action, written, answer) {
  const trouble = h('p', { class: 'trouble', role: 'alert' })
  const send = async (decision) => {
    trouble.textContent = ''
    for (const button of element.querySelectorAll('button')) button.disabled = true
    const refused = await answer({ tool_use_id: action.tool_use_id, ...decision })
    for (const button of element.querySelectorAll('button')) button.disabled = false
    trouble.textContent = refused ?? ''
  }
  const forms = { approval, elicitation, sign_in: signIn }
  const fieldsFor = forms[action.type] ?? CLIENT_TOOLS[action.name] ?? anyClientTool
  const element = h(
    'form',
    { class: 'ask', onsubmit: (event) => event.preventDefault() },
    ...fieldsFor(action, send, prettyJson(written)).filter(Boolean),
    expiry(action) ?? '',
    trouble,
  )
  return element
}

function expiry({ expires_at: until }) {
  if (!until) return null
  const time = new Date(until).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
  return h('p', { class: 'hint' }, texts.until(time))
}

// --- approvals -------------------------------------------------------------------------------------------------------

function approval(action, send, text) {
  const shown = h(
    'pre',
    { class: 'input', tabindex: 0, role: 'group', 'aria-label': texts.input, dir: 'ltr' },
    highlighted(text, 'json'),
  )
  const input = h('textarea', {
    'aria-label': texts.inputOf(action.name),
    rows: Math.min(12, text.split('\n').length),
    spellcheck: 'false',
    hidden: true,
  })
  const reason = h('input', {
    type: 'text',
    placeholder: texts.reasonHint,
    'aria-label': texts.reason,
    maxlength: 10_000,
  })
  input.value = text
  const input_digest = action.input_digest
  const edited = () => (input.hidden ? {} : { input: JSON.parse(input.value) })
  const allow = async (scope) => {
    let changes
    try {
      changes = edited()
    } catch (error) {
      input.setCustomValidity(error.message)
      return void input.reportValidity()
    }
    const remember = scope === 'chat' && { remember: { scope, ...conditionOf(only, changes.input ?? action.input) } }
    await send({ type: 'approve', input_digest, ...changes, ...remember })
  }
  const only = action.can_remember ? memberBoxes(action.input) : null
  input.addEventListener('input', () => input.setCustomValidity(''))
  const edit = () => {
    input.hidden = !input.hidden
    shown.hidden = !input.hidden
    if (!input.hidden) input.focus()
  }
  return [
    h('p', {}, h('strong', {}, action.name), texts.wants),
    shown,
    input,
    h(
      'div',
      { class: 'choices' },
      h('button', { type: 'button', class: 'primary', onclick: () => allow('call') }, texts.allow),
      action.can_remember && h('button', { type: 'button', onclick: () => allow('chat') }, texts.allowForChat),
      h('button', { type: 'button', onclick: edit }, texts.edit),
      h(
        'button',
        { type: 'button', class: 'danger', onclick: () => send({ type: 'deny', input_digest, reason: reason.value }) },
        texts.deny,
      ),
      reason,
    ),
    only,
  ]
}

/**
 * Creates a box for each member of an input. An approval for the chat covers only inputs with the same ticked members.
 */
function memberBoxes(input) {
  const members = Object.entries(input ?? {}).filter(([, value]) => Object(value) !== value)
  if (!members.length) return null
  const boxes = members.map(([name, value]) =>
    h(
      'label',
      { class: 'tick' },
      h('input', { type: 'checkbox', name: 'only', value: name }),
      h('span', {}, TEXTS.settings.is(name, JSON.stringify(value))),
    ),
  )
  return h('details', { class: 'only' }, h('summary', {}, texts.onlyWhere), ...boxes)
}

function conditionOf(only, input) {
  const ticked = [...(only?.querySelectorAll('input:checked') ?? [])].map((box) => box.value)
  return ticked.length ? { when: Object.fromEntries(ticked.map((name) => [name, { const: input[name] }])) } : {}
}

// --- questions of a tool that runs -----------------------------------------------------------------------------------

function elicitation({ name, input, input_digest }, send) {
  const { message, schema, url } = input
  const fields = Object.entries(schema?.properties ?? {}).map(([member, of]) =>
    fieldOf(member, of, Boolean(schema.required?.includes(member))),
  )
  const answer = (action, more = {}) => send({ type: 'answer', input_digest, action, ...more })
  const accept = (event) => {
    if (!event.currentTarget.form.reportValidity()) return
    const given = fields.map(({ member, value }) => [member, value()]).filter(([, value]) => value !== undefined)
    answer('accept', url ? {} : { content: Object.fromEntries(given) })
  }
  const isWeb = url && /^https?:/i.test(url)
  return [
    h('p', {}, h('strong', {}, name), texts.asks),
    h('p', { dir: 'auto' }, message),
    isWeb && h('p', {}, h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, url)),
    ...fields.map(({ element }) => element),
    h(
      'div',
      { class: 'choices' },
      h('button', { type: 'button', class: 'primary', onclick: accept }, url ? texts.done : texts.answer),
      h('button', { type: 'button', class: 'danger', onclick: () => answer('decline') }, texts.decline),
    ),
  ]
}

/**
 * Creates the link to a page of the server that shows what the person consents to. Afterwards the turn continues by
 * itself.
 */
function signIn({ name, input, input_digest }, send) {
  const { server, url, scopes } = input
  const isWeb = /^https?:/i.test(url)
  return [
    h('p', {}, h('strong', {}, name), texts.wantsSignIn(server)),
    scopes?.length ? h('p', { class: 'hint' }, texts.scopes(scopes.join(', '))) : null,
    h(
      'div',
      { class: 'choices' },
      isWeb &&
        h('a', { class: 'button', href: url, target: '_blank', rel: 'noopener noreferrer' }, texts.signIn(server)),
      h(
        'button',
        { type: 'button', class: 'danger', onclick: () => send({ type: 'answer', input_digest, action: 'decline' }) },
        texts.decline,
      ),
    ),
  ]
}

/** Creates the field for a member of an answer: a text, a number, yes or no, or one of several values. */
function fieldOf(member, /** @type {any} */ { type, title, description, default: preset, ...of }, required) {
  const label = title ?? member
  const choices = of.enum ?? of.oneOf?.map((one) => one.const)
  const names = of.enumNames ?? of.oneOf?.map((one) => one.title)
  if (type === 'boolean') {
    const box = h('input', { type: 'checkbox', name: member })
    box.checked = preset === true
    const element = h('label', { class: 'tick' }, box, h('span', {}, description ?? label))
    return { member, element, value: () => box.checked }
  }
  const input = choices
    ? h('select', { name: member }, ...choices.map((one, place) => h('option', { value: one }, names?.[place] ?? one)))
    : h('input', { name: member, ...inputOf(type, of) })
  input.required = required
  if (choices && !required) input.prepend(h('option', { value: '' }, '—'))
  if (preset !== undefined) input.value = preset
  const isNumber = type === 'number' || type === 'integer'
  const value = () => (input.value === '' ? undefined : isNumber ? Number(input.value) : input.value)
  return {
    member,
    value,
    element: h('label', {}, label, input, description && h('span', { class: 'hint' }, description)),
  }
}

function inputOf(type, { minimum: min, maximum: max, minLength: minlength, maxLength: maxlength, format }) {
  const given = (options) => Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
  if (type === 'integer') return { type: 'number', step: 1, ...given({ min, max }) }
  if (type === 'number') return { type: 'number', step: 'any', ...given({ min, max }) }
  return { type: { email: 'email', uri: 'url', date: 'date' }[format] ?? 'text', ...given({ minlength, maxlength }) }
}

// --- tools of this page ----------------------------------------------------------------------------------------------

const CLIENT_TOOLS = { confirm, geolocation }

function confirm({ input }, send) {
  const reply = (confirmed) => () => send({ type: 'result', output: { confirmed } })
  return [
    h('p', { dir: 'auto' }, String(input?.question ?? texts.confirm)),
    h(
      'div',
      { class: 'choices' },
      h('button', { type: 'button', class: 'primary', onclick: reply(true) }, texts.yes),
      h('button', { type: 'button', onclick: reply(false) }, texts.no),
    ),
  ]
}

function geolocation({ input }, send) {
  const refuse = (reason) => send({ type: 'result', is_error: true, output: reason })
  const locate = () =>
    navigator.geolocation.getCurrentPosition(
      ({ coords: { latitude, longitude, accuracy } }) =>
        send({ type: 'result', output: { latitude, longitude, accuracy_metres: accuracy } }),
      (error) => refuse(`The place of the user could not be found: ${error.message}`),
      { timeout: 20_000 },
    )
  return [
    h('p', {}, texts.place),
    input?.reason ? h('p', { class: 'hint', dir: 'auto' }, String(input.reason)) : null,
    h(
      'div',
      { class: 'choices' },
      h('button', { type: 'button', class: 'primary', onclick: locate }, texts.share),
      h(
        'button',
        { type: 'button', onclick: () => refuse('The user does not want to say where they are.') },
        texts.doNotShare,
      ),
    ),
  ]
}

/** Creates the form for a tool that another client declared: the person may enter its result here. */
function anyClientTool(action, send, text) {
  const output = h('textarea', {
    'aria-label': texts.resultOf(action.name),
    rows: 3,
    placeholder: texts.resultHint,
  })
  return [
    h('p', {}, h('strong', {}, action.name), texts.otherPage),
    h(
      'pre',
      { class: 'input', tabindex: 0, role: 'group', 'aria-label': texts.input, dir: 'ltr' },
      highlighted(text, 'json'),
    ),
    output,
    h(
      'div',
      { class: 'choices' },
      h(
        'button',
        { type: 'button', class: 'primary', onclick: () => send({ type: 'result', output: output.value }) },
        texts.send,
      ),
      h(
        'button',
        {
          type: 'button',
          class: 'danger',
          onclick: () => send({ type: 'result', is_error: true, output: output.value || 'It cannot be run.' }),
        },
        texts.failed,
      ),
    ),
  ]
}

// The settings of a chat: stored with the chat, or kept by the page until a new chat begins.

import { PAGE_TOOLS } from './asks.js'
import { find, findAll, h } from './dom.js'
import { changesOf, controlsOf, withControls, withoutControls } from './parameters.js'
import { TEXTS } from './texts.js'

const { settings: texts } = TEXTS

export class Settings {
  constructor(client, conversation) {
    this.client = client
    this.conversation = conversation
    this.dialog = find('#settings')
    this.form = find('#settings form')
    this.trouble = find('#settings-trouble')
    /** @type {any[]} tools that are declared by a client */
    this.declared = []
    find('#open-settings').addEventListener('click', () => this.show())
    // Not `change`: it fires when the focus moves to a control, which would then be replaced under the pointer.
    this.form.elements.model.addEventListener('input', () => this.#changeModel())
    this.form.addEventListener('submit', (event) => this.#save(event))
  }

  async show() {
    const { id, draft } = this.conversation
    const [{ models }, { tools }, chat] = await Promise.all([
      this.client.request('GET', '/api/models'),
      this.client.request('GET', '/api/tools'),
      id ? this.client.request('GET', `/api/chats/${id}`) : draft,
    ])
    this.settings = chat.settings ?? {}
    this.#fill(chat, models, tools)
    await this.#showGrants(id)
    this.trouble.textContent = ''
    this.dialog.showModal()
  }

  #fill({ system_prompt, settings = /** @type {any} */ ({}) }, models, tools) {
    const { model, max_rounds, earlier_results, system } = this.form.elements
    const standard = models.find((one) => one.default)
    this.models = models
    find('#models').replaceChildren(...models.map((one) => h('option', { value: one.id })))
    Object.assign(model, { value: settings.model ?? '', placeholder: standard?.id ?? '' })
    max_rounds.value = settings.limits?.max_rounds ?? ''
    earlier_results.value = settings.limits?.earlier_results ?? ''
    system.value = system_prompt ?? ''
    this.#fillParams(settings.params ?? {})
    this.#fillTools(tools, settings.tools)
  }

  /** Draws the controls of the model that the form names. Parameters without a control stay as JSON. */
  #fillParams(values) {
    const { model, params } = this.form.elements
    const name = model.value.trim()
    const known = this.models.find((one) => (name ? [one.id, ...one.aliases].includes(name) : one.default))
    find('#params').replaceChildren(...controlsOf(known?.params ?? [], values))
    const others = withoutControls(values, this.#controls())
    params.value = Object.keys(others).length ? JSON.stringify(others, null, 2) : ''
  }

  #controls() {
    return findAll('#params [data-param]')
  }

  #changeModel() {
    try {
      this.#fillParams(this.#params())
    } catch {
      // The JSON is being edited: the controls stay as they are until the JSON is valid.
    }
  }

  /** Returns the parameters. Throws SyntaxError if they are not JSON. */
  #params() {
    const text = this.form.elements.params.value.trim()
    return withControls(text ? JSON.parse(text) : {}, this.#controls())
  }

  #fillTools(tools, chosen) {
    this.declared = [
      ...PAGE_TOOLS,
      ...(chosen ?? []).filter((tool) => tool.type && !PAGE_TOOLS.some((own) => own.name === tool.name)),
    ]
    const names = chosen?.map((tool) => tool.name ?? tool)
    const all = [...tools, ...this.declared.filter((tool) => tool.name)]
    const boxes = all.map((tool) => {
      const box = h('input', { type: 'checkbox', name: 'tool', value: tool.name })
      box.checked = names ? names.includes(tool.name) : true
      return h('label', {}, box, h('span', {}, h('strong', {}, tool.name), ` ${tool.description.split('\n')[0]}`))
    })
    find('#tools').replaceChildren(...boxes)
    this.ticked = this.#ticks()
  }

  /** Lists the remembered approvals of the chat. A person revokes them at once, not when the form is saved. */
  async #showGrants(id) {
    const { grants } = id ? await this.client.request('GET', `/api/chats/${id}/grants`) : { grants: [] }
    const revoke = async (grant) => {
      await this.client.request('DELETE', `/api/chats/${id}/grants/${grant.id}`)
      await this.#showGrants(id)
    }
    const items = grants.map((grant) =>
      h(
        'li',
        {},
        h('span', {}, h('strong', {}, grant.tool), ` ${conditionText(grant.when)}`),
        h(
          'button',
          { type: 'button', 'aria-label': texts.revokeTool(grant.tool), onclick: () => revoke(grant) },
          texts.revoke,
        ),
      ),
    )
    find('#grants ul').replaceChildren(...items)
    find('#grants').hidden = !items.length
  }

  #ticks() {
    return new FormData(this.form).getAll('tool')
  }

  async #save(event) {
    if (event.submitter?.value !== 'save') return
    event.preventDefault()
    try {
      await this.#change(this.#read())
      this.dialog.close()
    } catch (error) {
      this.trouble.textContent = error.message
    }
  }

  /** Reads the form. Settings that it does not show stay as they are. Throws SyntaxError if the params are not JSON. */
  #read() {
    const { model, max_rounds, earlier_results, system } = this.form.elements
    const { model: _, params: __, limits, tools, ...others } = this.settings
    const newParams = this.#params()
    const { max_rounds: ___, earlier_results: ____, ...otherLimits } = limits ?? {}
    const newLimits = {
      ...otherLimits,
      ...(max_rounds.value && { max_rounds: Number(max_rounds.value) }),
      ...(earlier_results.value && { earlier_results: earlier_results.value }),
    }
    const settings = {
      ...others,
      ...(model.value.trim() && { model: model.value.trim() }),
      ...(Object.keys(newParams).length && { params: newParams }),
      ...(Object.keys(newLimits).length && { limits: newLimits }),
      ...this.#tools(tools),
    }
    return { system_prompt: system.value.trim() || null, settings }
  }

  /** Returns the unchanged tools unless a tick has changed: otherwise the chat would be fixed to the present tools. */
  #tools(before) {
    const ticks = this.#ticks()
    if (String(ticks) === String(this.ticked)) return before ? { tools: before } : {}
    const unnamed = this.declared.filter((tool) => !tool.name)
    return { tools: [...ticks.map((name) => this.declared.find((tool) => tool.name === name) ?? name), ...unnamed] }
  }

  async #change(changes) {
    const { id } = this.conversation
    const { settings } = changes
    if (id)
      await this.client.request('PATCH', `/api/chats/${id}`, {
        ...changes,
        settings: changesOf(this.settings, settings),
      })
    else this.conversation.plan(changes)
  }
}

/** @param {Record<string, any> | null} when */
function conditionText(when) {
  const parts = Object.entries(when ?? {}).map(([name, { const: value, enum: values, minimum, maximum }]) =>
    [
      value === undefined ? '' : texts.is(name, JSON.stringify(value)),
      values && texts.isOneOf(name, JSON.stringify(values)),
      minimum !== undefined && texts.isAtLeast(name, minimum),
      maximum !== undefined && texts.isAtMost(name, maximum),
    ]
      .filter(Boolean)
      .join(', '),
  )
  return parts.length ? texts.where(parts.join(', ')) : texts.anyInput
}

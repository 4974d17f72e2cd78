// What an operator asks of the node that serves the page: confirmed, with the admin token.

const REQUESTS = {
  switchover: {
    title: 'Switch over?',
    text: 'Another node that is in sync and warm becomes the active. Nothing is lost, and producers wait for a moment.',
    button: 'Switch over',
    body: {by: 'an operator at the page'},
    granted: ({to}) => `${to ?? 'The other node'} is taking over.`,
  },
  pause: {
    title: 'Pause failover?',
    text: 'The active continues. No node takes over until an operator resumes failover, even if the active dies.',
    button: 'Pause failover',
    granted: ({holder}) => `Failover is paused; ${holder ?? 'no node'} holds the lease.`,
  },
  resume: {
    title: 'Resume failover?',
    text: 'A node that is in sync takes over again if the active fails.',
    button: 'Resume failover',
    granted: ({holder}) => `Failover is on; ${holder ?? 'no node'} holds the lease.`,
  },
};

/** The dialog in index.html. The token lives in this object, and nowhere else. */
export class Requests {
  #token = '';
  #asked = null;

  constructor(base) {
    this.base = base;
    this.dialog = document.getElementById('request');
    this.form = this.dialog.querySelector('form');
    this.field = document.getElementById('token');
    this.answer = document.getElementById('request-answer');
    this.button = document.getElementById('request-send');
    this.close = document.getElementById('request-close');
    this.close.addEventListener('click', () => this.dialog.close());
    this.dialog.addEventListener('close', () => (this.field.value = ''));
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#send();
    });
  }

  /** @param {'switchover'|'pause'|'resume'} what */
  open(what) {
    this.#asked = what;
    const {title, text, button} = REQUESTS[what];
    document.getElementById('request-title').textContent = title;
    document.getElementById('request-text').textContent = text;
    this.button.textContent = button;
    this.button.disabled = false;
    this.close.textContent = 'Cancel';
    this.field.value = this.#token;
    this.#say('', '');
    this.dialog.showModal();
  }

  async #send() {
    this.#token = this.field.value;
    this.button.disabled = true;
    this.#say('', 'Sending the request …');
    try {
      this.#tell(await this.#post());
    } catch {
      this.#say('bad', 'The node did not answer. The page shows whether the request took effect.');
    }
    this.button.disabled = false;
  }

  async #post() {
    const headers = {'Content-Type': 'application/json'};
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`;
    const body = JSON.stringify(REQUESTS[this.#asked].body ?? {});
    return fetch(`${this.base}v1/${this.#asked}`, {
      method: 'POST',
      headers,
      body,
      signal: AbortSignal.timeout(15000),
    });
  }

  async #tell(answer) {
    const said = await answer.json();
    if (answer.status === 401 || answer.status === 403) this.#token = this.field.value = '';
    if (!answer.ok) return this.#say('bad', said.error ?? `The node answered ${answer.status}.`);
    this.close.textContent = 'Close';
    return this.#say('good', REQUESTS[this.#asked].granted(said));
  }

  #say(level, sentence) {
    this.answer.dataset.level = level;
    this.answer.textContent = sentence;
  }
}

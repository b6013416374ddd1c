#include "_torch_hot_mode.h"

#include "_torch_hot_seam.h"

static PyObject *tell;

void mode_bind(PyObject *telling) { tell = Py_NewRef(telling); }

/* `BirthMode.__torch_function__`, where births are seen without it: func, types, args, kwargs. */
static PyObject *handle(PyObject *mode, PyObject *const *arguments, Py_ssize_t number)
{
    (void)mode;
    if (number < 2 || number > 4 || tell == NULL || (number > 2 && !PyTuple_Check(arguments[2])) ||
        (number > 3 && arguments[3] != Py_None && !PyDict_Check(arguments[3]))) {
        PyErr_SetString(PyExc_TypeError, "__torch_function__() takes a function, types, a tuple and a dict");
        return NULL;
    }
    PyObject *func = arguments[0], *kwargs = number > 3 ? arguments[3] : Py_None;
    PyObject *args = number > 2 ? Py_NewRef(arguments[2]) : PyTuple_New(0);
    PyObject *result = args == NULL ? NULL : PyObject_Call(func, args, kwargs == Py_None ? NULL : kwargs);
    int untold = result == NULL ? 0 : seam_has_untold();
    if (untold > 0) {
        PyObject *given[] = {result, args, kwargs};
        PyObject *told = PyObject_Vectorcall(tell, given, 3, NULL);
        untold = told == NULL ? -1 : 0;
        Py_XDECREF(told);
    }
    if (untold < 0) {
        /* What a budget refuses shall be gone when it is told. */
        PyObject *error, *value, *traceback;
        PyErr_Fetch(&error, &value, &traceback);
        Py_CLEAR(result);
        Py_CLEAR(args);
        PyErr_Restore(error, value, traceback);
    }
    Py_XDECREF(args);
    return result;
}

static PyMethodDef handler = {"__torch_function__", (PyCFunction)(void (*)(void))handle, METH_FASTCALL, NULL};

PyObject *mode_handler_of(PyObject *module, PyObject *mode)
{
    (void)module;
    return PyCFunction_New(&handler, mode);
}
